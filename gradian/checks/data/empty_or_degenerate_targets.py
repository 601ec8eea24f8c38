"""Targets that say nothing.

What it detects
    Last answers of rows that are empty; that hold no letter or digit; that are a placeholder (n/a, todo, ...) which the
    row has not named before ("answer None if there are none"); that repeat one word or character; or that have
    at most two characters where answers have ten words or more in the median.

Why it matters
    An empty answer teaches the model to stop at once, a placeholder to say it. Public instruction sets hold
    some: low below 0.5% of the rows, medium from there, high from 5%. Answers that are only very short, as
    multiple choice has them, never weigh more than low.

What to do
    Fill in the answers or remove the rows.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

import numpy as np

from gradian.checks.audit import Audit
from gradian.checks.registry import Need, check
from gradian.checks.row_findings import by_share, ids_at, row_figures, row_list
from gradian.types import Example, Finding, Message, Severity

_PLACEHOLDERS = frozenset(
    {
        *(
            "n/a",
            "na",
            "none",
            "null",
            "nan",
            "undefined",
            "todo",
            "tbd",
            "fixme",
            "xxx",
            "noinput",
            "<noinput>",
        ),
        *("lorem ipsum", "placeholder", "[answer]", "your answer here"),
    }
)
_INVISIBLE = {"Cc", "Cf", "Mn"}  # Controls, zero-width characters, variation selectors.
_REPEATS = 5
_SHORT_CHARACTERS = 2
_LONG_MEDIAN_WORDS = 10


@check("data.empty_or_degenerate_targets", "Empty or trivially short targets", needs=(Need.DATASET,))
def empty_or_degenerate_targets(audit: Audit) -> Iterator[Finding]:
    """Look at the last answer of each row."""
    examples = [example for example in audit.examples if example.problem is None]
    empty, degenerate, short = [], [], []
    words = []
    for example in examples:
        answer = _answer(example)
        target = (answer.content if answer else example.text or "").strip()
        if answer is not None and answer.extra and "tool_calls" in answer.extra:
            continue
        words.append(target.count(" ") + 1 if target else 0)
        if not target:
            empty.append(example.position)
        elif is_degenerate(target) and not _asked_for(example, target):
            degenerate.append(example.position)
        elif len(target) <= _SHORT_CHARACTERS:
            short.append(example.position)
    if not words or np.median(words) < _LONG_MEDIAN_WORDS:
        short = []
    found = sorted([*empty, *degenerate, *short])
    if not found:
        return
    total = len(audit.examples)
    high = audit.limits.data.degenerate_share_high
    severity = by_share(
        (len(empty) + len(degenerate)) / total,
        (high, Severity.HIGH),
        (high / 10, Severity.MEDIUM),
        otherwise=Severity.LOW,
    )
    kinds = (
        ("empty or without an answer", empty),
        ("without meaning", degenerate),
        ("of one or two characters", short),
    )
    yield Finding(
        "data.empty_or_degenerate_targets",
        severity,
        f"{len(found)} of {total} targets ({len(found) / total:.1%}) are empty or say nothing",
        "; ".join(f"{len(rows)} {kind}: {row_list(rows)}" for kind, rows in kinds if rows) + ".",
        "Fill in these answers or remove the rows.",
        ids_at(audit.examples, found),
        row_figures(found, total, empty=len(empty), degenerate=len(degenerate), short=len(short)),
    )


def is_degenerate(text: str) -> bool:
    """Whether a non-empty text has no content: no letter or digit, a placeholder, or one thing repeated."""
    if not any(character.isalnum() for character in text):
        # A symbol can be an answer (an emoji, an operator); dots and dashes are none, nor what nobody sees.
        left = re.sub(r"[\s.\-_\u2026*#?!]", "", text)
        return all(unicodedata.category(character) in _INVISIBLE for character in left)
    plain = text.lower().strip(" .!?:")
    if plain in _PLACEHOLDERS:
        return True
    if len(text) >= _REPEATS and len(set(plain)) == 1 and not plain.isdigit():
        return True
    words = plain.split()
    return len(words) >= _REPEATS and len(set(words)) == 1


def _asked_for(example: Example, target: str) -> bool:
    word = target.lower().strip(" .!?:")
    if word not in _PLACEHOLDERS:  # What is repeated may be a book, which is no pattern to search for.
        return False
    named = re.compile(rf"(?<!\w){re.escape(word)}(?!\w)")
    return any(
        named.search(turn.content.lower()) for turn in example.messages if turn is not _answer(example)
    )


def _answer(example: Example) -> Message | None:
    # A row may go on after its answer, with thanks or with the result of a tool.
    return next((turn for turn in reversed(example.messages) if turn.role == "assistant"), None)
