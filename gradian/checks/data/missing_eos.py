"""Answers that do not end with an end token.

What it detects
    Rows whose last target is no end token: the template writes none behind the answer, the loss mask leaves
    it out, or the row is raw text that does not end with one. A line break behind the end token, which the
    training templates of trl keep in the mask, is passed over. Rows that the length limit cut are left to
    `data.truncated`, and raw text is passed over when trl trained on it, which closes such rows itself.

Why it matters
    The model never learns to stop. It runs to the generation limit, and an exact match fails on answers that
    it knew. High from 5% of the rows for conversations, rendered ones included. Documents for continued
    pretraining may do without: low.

What to do
    Append the tokenizer's eos_token (or the template's end-of-turn token) to each answer, and see that it is
    within the loss mask.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from gradian.checks.audit import Audit
from gradian.checks.registry import Need, check
from gradian.checks.row_findings import by_share, counted, ids_at, row_figures, row_list
from gradian.data.masks import KNOWN_RESPONSE_MARKERS
from gradian.types import Example, Finding, IntArray, Severity

ID = "data.missing_eos"


@check(ID, "Targets that do not end with EOS", needs=(Need.DATASET, Need.TOKENIZER))
def missing_eos(audit: Audit) -> Iterator[Finding]:
    """Look at the last target of each row."""
    tokenizer = audit.encoder.tokenizer if audit.encoder else None
    names = end_tokens(tokenizer)
    ids = frozenset(tokenizer.convert_tokens_to_ids(list(names)) if tokenizer else ())
    blank = _Blank(tokenizer)
    closes_text = audit.run is not None and audit.run.trainer == "trl"
    answers: list[int] = []
    documents: list[int] = []
    for example, row in zip(audit.examples, audit.encoded, strict=True):
        if row.truncated or example.problem is not None:
            continue
        if example.text is not None:
            if not example.text.rstrip().endswith(names) and example.text.strip() and not closes_text:
                (answers if _is_rendered(example) else documents).append(example.position)
            continue
        targets = np.flatnonzero(row.supervised)
        if len(targets) and not _ends(row.input_ids, targets, ids, blank):
            answers.append(example.position)
    found = sorted([*answers, *documents])
    if not found:
        return
    total = len(audit.examples)
    high = audit.limits.data.missing_eos_share_high
    severity = by_share(
        len(answers) / total, (high, Severity.HIGH), (1 / total, Severity.MEDIUM), otherwise=Severity.LOW
    )
    wanted = str(tokenizer.eos_token) if tokenizer else ""
    kinds = (("answer", answers), ("raw text", documents))
    yield Finding(
        ID,
        severity,
        f"{len(found)} of {total} targets ({len(found) / total:.1%}) do not end with an end token",
        "; ".join(f"{counted(len(rows), kind)}: {row_list(rows)}" for kind, rows in kinds if rows)
        + f". The tokenizer's eos_token is {wanted!r}.",
        f"Append {wanted!r}, or the template's end-of-turn token, to each answer, inside the loss mask.",
        ids_at(audit.examples, found),
        row_figures(found, total, answers=len(answers), documents=len(documents)),
    )


def end_tokens(tokenizer: object) -> tuple[str, ...]:
    """The special tokens that may end a text: not those that begin it, pad it or stand for the unknown."""
    named = {str(token) for token in getattr(tokenizer, "all_special_tokens", ())}
    added = getattr(tokenizer, "added_tokens_decoder", {}).values()
    named |= {str(token) for token in added if getattr(token, "special", False)}
    eos = str(getattr(tokenizer, "eos_token", None))
    for role in ("bos_token", "pad_token", "unk_token"):
        token = str(getattr(tokenizer, role, None))
        if token != eos:
            named.discard(token)
    return tuple(sorted(named))


class _Blank(dict[int, bool]):
    """Whether a token is white space, by id; each is decoded once."""

    def __init__(self, tokenizer: Any) -> None:
        super().__init__()
        self._tokenizer = tokenizer

    def __missing__(self, token: int) -> bool:
        self[token] = not str(self._tokenizer.decode([token])).strip()
        return self[token]


def _ends(tokens: IntArray, targets: IntArray, ends: frozenset[int], blank: _Blank) -> bool:
    for at in reversed(targets):
        token = int(tokens[at])
        if token in ends or not blank[token]:
            return token in ends
    return False


def _is_rendered(example: Example) -> bool:
    return any(marker in (example.text or "") for marker in KNOWN_RESPONSE_MARKERS)
