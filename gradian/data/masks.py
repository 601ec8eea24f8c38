"""Which tokens are supervised: character spans of the answers, and the tokens that lie on them.

The text is tokenised once, whole, as a trainer does; a token belongs to a span when it shares a character
with it. Comparing tokens of a prompt with tokens of the whole text instead goes wrong wherever a merge crosses
the border.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, islice
from typing import Any

import numpy as np

from gradian.types import BoolArray, EncodedExample, Example, IntArray

Span = tuple[int, int]
"""Characters [start, end) of a text."""

KNOWN_RESPONSE_MARKERS = (
    "<|im_start|>assistant\n",
    "<|start_header_id|>assistant<|end_header_id|>\n\n",
    "<start_of_turn>model\n",
    "<|assistant|>\n",
    "[/INST]",
    "### Response:",
    "### Assistant:",
    "<|Assistant|>",
    "ASSISTANT:",
)
_GENERATION_BLOCK = re.compile(r"\{%-?\s*generation\s*-?%\}")
_GENERATION_TAGS = re.compile(
    r"\{%(?P<left>[-+]?)\s*(?P<name>generation|endgeneration)\s*(?P<right>[-+]?)%\}"
)
_DATE_CODES = ("-d", "-m", "-H", "-I", "-M", "-S", "-j", *"aAbBcdeDFHIjmMnpRSTuUVwWxXyY")
# How vocabularies spell white space at the start of a token: byte-level space, newline, tab and carriage
# return, SentencePiece's space, and the characters themselves.
_SPACE_SURFACES = frozenset("\u0120\u010a\u0109\u010d\u2581 \n\t\r")
# Code points that are no characters: they survive a template and occur in no text.
_NONCHARACTERS = tuple(chr(code) for code in range(0xFDD0, 0xFDF0))


@dataclass(frozen=True)
class TurnText:
    """Where the target of one assistant turn lies in a rendered conversation.

    Attributes:
        turn: 0-based number of the message.
        span: the target's characters, end-of-turn token included where the mask includes it.
        stable: whether the conversation up to the turn, and up to its end, render to the text's own beginning.
        altered: whether the template changed the turn's text.
        ends: whether the span takes in the end-of-turn token.
    """

    turn: int
    span: Span
    stable: bool = True
    altered: bool = False
    ends: bool = True


@lru_cache(maxsize=64)
def has_generation_block(template: str) -> bool:
    """Whether a chat template marks assistant text with `{% generation %}`.

    Without one, a trainer's `assistant_only_loss` finds no token to supervise.
    """
    return bool(_GENERATION_BLOCK.search(template))


def without_generation_tags(template: str) -> str:
    """The template without its generation tags, which only transformers' own Jinja understands."""
    return _GENERATION_TAGS.sub("", template)


def marker_pair(texts: Iterable[str]) -> tuple[str, str]:
    """Two characters that none of the texts holds."""
    joined = "".join(texts)
    free = list(islice((character for character in _NONCHARACTERS if character not in joined), 2))
    if len(free) < 2:
        raise ValueError("the text uses every Unicode noncharacter")
    return free[0], free[1]


@lru_cache(maxsize=64)
def marked_template(template: str, opening: str, closing: str) -> str:
    """A template that writes `opening` and `closing` around the text of each generation block.

    The tags' own whitespace control stays in force: each marker sits between two block tags.
    """

    def replace(match: re.Match[str]) -> str:
        left, name, right = match["left"], match["name"], match["right"]
        if name == "generation":
            return f"{{%{left} if true %}}{{{{ '{opening}' }}}}{{% generation {right}%}}"
        return f"{{%{left} endgeneration %}}{{{{ '{closing}' }}}}{{% endif {right}%}}"

    return _GENERATION_TAGS.sub(replace, template)


@lru_cache(maxsize=64)
def dated_template(template: str, date: datetime.datetime) -> str:
    """A template whose `strftime_now` always tells `date`.

    Written as a macro in front of the template, since `apply_chat_template` hands on plain data only. The
    newline behind the macro is the one that `trim_blocks` takes away.
    """
    if "strftime_now" not in template:
        return template
    filters = "".join(
        f" | replace('%{code}', {json.dumps(date.strftime('%' + code))})" for code in _DATE_CODES
    )
    macro = "{% macro strftime_now(layout) -%}{{ layout" + filters + " | replace('%%', '%') }}"
    return macro + "{%- endmacro %}\n" + template


def split_markers(text: str, opening: str, closing: str) -> tuple[str, tuple[Span, ...]]:
    """Takes the markers out of a rendered text.

    Returns:
        The text without markers and the spans that they enclosed, in order.
    """
    pieces: list[str] = []
    spans: list[Span] = []
    length = 0
    start: int | None = None
    for piece in re.split(f"([{opening}{closing}])", text):
        if piece == opening:
            start = length
        elif piece == closing:
            if start is not None:
                spans.append((start, length))
            start = None
        else:
            pieces.append(piece)
            length += len(piece)
    return "".join(pieces), tuple(spans)


def common_prefix(first: str, second: str) -> int:
    """Number of characters that two texts have in common at their beginning."""
    if second.startswith(first):
        return len(first)
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        if first[:middle] == second[:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def turn_end(
    text: str, start: int, stop: int, content: str, calls_tools: bool, ends: re.Pattern[str]
) -> Span:
    """Finds the end of a turn that begins at `start` and has ended by `stop`.

    Args:
        content: the turn's own text.
        calls_tools: the turn holds tool calls, which follow the content and may use special tokens themselves.
        ends: matches any special token.

    Returns:
        Where the content ends, and where its end-of-turn token does (the same where it has none). White space
        that the template writes after the end-of-turn token is outside.
    """
    wanted = content.strip()
    place = text.find(wanted, start, stop) if wanted else -1
    after = place + len(wanted) if place >= 0 else start
    tokens = list(ends.finditer(text, after, stop))
    if not tokens:
        visible = after + len(text[after:stop].rstrip())
        return visible, visible
    token = tokens[-1] if calls_tools or place < 0 else tokens[0]
    return token.start(), token.end()


def token_extents(offsets: Sequence[Span], surfaces: Callable[[], Sequence[str]]) -> IntArray:
    """The characters that each token really covers.

    Byte-level tokenizers may trim white space off the offsets they report (`trim_offsets`), which would leave a
    token of spaces with no characters at all. A gap between two tokens belongs to the later one when that
    begins with white space, else to the earlier.

    Args:
        offsets: reported (start, end) of each token, [t].
        surfaces: gives the vocabulary entries of the tokens, [t]; asked only where there is a gap.

    Returns:
        int64 [t, 2].
    """
    # Faster by far than an array made from a list of pairs.
    flat = np.fromiter(chain.from_iterable(offsets), dtype=np.int64, count=2 * len(offsets))
    extents = flat.reshape(-1, 2)
    reached = np.concatenate([[0], np.maximum.accumulate(extents[:, 1])])[:-1]
    gaps = np.flatnonzero(extents[:, 0] > reached).tolist()
    entries = surfaces() if gaps else ()
    for i in gaps:
        if entries[i][:1] in _SPACE_SURFACES or i == 0:
            extents[i, 0] = reached[i]
        else:
            extents[i - 1, 1] = extents[i, 0]
    return extents


def span_mask(extents: IntArray, spans: Sequence[Span]) -> tuple[BoolArray, int]:
    """Marks the tokens that share a character with a span.

    Args:
        extents: characters of each token, int64 [t, 2].
        spans: disjoint spans.

    Returns:
        bool [t], and how many marked tokens also hold characters from outside their span (they straddle the
        border, and count as supervised).
    """
    starts, ends = extents[:, 0], extents[:, 1]
    mask = np.zeros(len(extents), dtype=np.bool_)
    straddling = 0
    for start, end in spans:
        hit = (ends > start) & (starts < end)
        straddling += int((hit & ((starts < start) | (ends > end))).sum())
        mask |= hit
    return mask, straddling


def prefix_extents(
    text: str, input_ids: Sequence[int], borders: Sequence[int], tokenize: Callable[[str], Sequence[int]]
) -> IntArray:
    """Token extents for a tokenizer that reports no offsets: exact at the borders asked for, vague between.

    Each piece of text up to a border is tokenised on its own; the tokens that it shares with the whole text
    lie before the border. A token that crosses it gets the characters of both sides.
    """
    n = len(input_ids)
    starts, ends = [0] * n, [len(text)] * n
    for border in sorted(set(borders)):
        head = list(tokenize(text[:border]))
        shared = 0
        while shared < min(len(head), n) and head[shared] == input_ids[shared]:
            shared += 1
        crossing = shared < len(head)
        for i in range(shared):
            ends[i] = min(ends[i], border)
        for i in range(shared + int(crossing), n):
            starts[i] = max(starts[i], border)
    return np.asarray(list(zip(starts, ends, strict=True)), dtype=np.int64).reshape(-1, 2)


@dataclass(frozen=True)
class Border:
    """How a prompt and its completion meet when both are tokenised as one text.

    Attributes:
        prompt_is_prefix: whether the prompt's own tokens are the beginning of the whole text's tokens.
        straddling: the vocabulary entry of the token that lies on both sides, or None.
        n_prompt: tokens that hold a character of the prompt; all later ones are completion.
    """

    prompt_is_prefix: bool
    straddling: str | None
    n_prompt: int


def text_border(tokenizer: Any, prompt: str, completion: str) -> Border:
    """Examines the border of a prompt and a completion that a trainer joins as plain text.

    A trainer that masks `len(tokenize(prompt))` tokens masks a straddling token too, so here it counts as
    prompt, unlike in `span_mask`.
    """
    head = tokenizer(prompt, add_special_tokens=False)["input_ids"]
    whole = tokenizer(prompt + completion, add_special_tokens=False, return_offsets_mapping=True)
    ids = whole["input_ids"]
    surfaces = tokenizer.convert_ids_to_tokens(ids)
    extents = token_extents(whole["offset_mapping"], lambda: surfaces)
    border = len(prompt)
    crossing = [i for i, (start, end) in enumerate(extents) if start < border < end]
    return Border(
        list(ids[: len(head)]) == list(head),
        surfaces[crossing[0]] if crossing else None,
        sum(start < border for start, _ in extents),
    )


def contains_ids(input_ids: Sequence[int], wanted: Sequence[int]) -> bool:
    """Whether the token ids occur one after another: how trainers look for a response template."""
    n, m = len(input_ids), len(wanted)
    return any(list(input_ids[i : i + m]) == list(wanted) for i in range(n - m + 1))


def marker_rows(examples: Iterable[Example], marker: str) -> tuple[int, ...]:
    """Positions of the raw text rows that hold a response marker."""
    return tuple(e.position for e in examples if e.text is not None and marker in e.text)


def markers_present(examples: Sequence[Example]) -> tuple[tuple[str, int], ...]:
    """The known response markers that occur in raw text rows, with the number of rows, most frequent first."""
    counts = [(marker, len(marker_rows(examples, marker))) for marker in KNOWN_RESPONSE_MARKERS]
    return tuple(sorted((pair for pair in counts if pair[1]), key=lambda pair: -pair[1]))


def targets_lost_to_padding_id(encoded: Iterable[EncodedExample], pad_id: int) -> int:
    """Targets that a collator erases when it sets every label equal to the padding id to -100."""
    return sum(int(((row.input_ids == pad_id) & row.supervised).sum()) for row in encoded)
