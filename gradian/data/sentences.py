"""Which part of an answer a token belongs to: sentences over the text that the tokens spell."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from gradian.types import EncodedExample

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# A sentence's last mark, with what closes after it; or the end of a line.
# The escapes are closing quotation marks and brackets, and the full stops of Chinese and Japanese.
# Only the first of several marks is tried: a later one ends where it does.
_END = re.compile(
    r"(?:(?<![.!?\u2026])[.!?\u2026]+[\"'\u201d\u2019\u00bb)\]]*(?=\s)|[\u3002\uff01\uff1f]+[\u300d\u300f\u201d\u2019\uff09]*|(?=\n))\s*"
)
# An initial or an abbreviation, whose full stop ends no sentence.
_SHORTENED = re.compile(r"\b(?:[A-Z]|Mr|Mrs|Ms|Dr|Prof|St|Jr|Sr|No|Fig|Eq|vs|cf|al|approx|e\.g|i\.e)$")
_LONGEST_SHORTENED = 6
_MOST_ITEM_DIGITS = 3
_INCOMPLETE = "\ufffd"


@dataclass(frozen=True)
class TokenSpan:
    """Consecutive supervised tokens.

    Attributes:
        start: position of the first.
        end: one past the last.
        text: what they spell.
    """

    start: int
    end: int
    text: str


def sentence_starts(text: str) -> list[int]:
    """Return where each sentence of `text` begins, in characters; white space belongs to the sentence before it.

    A line end ends a sentence. A full stop does not when the next word is in lower case, nor after an initial, a
    common abbreviation or the number of a list's item.
    """
    starts = [0]
    for match in _END.finditer(text):
        stop = match.end()
        if stop >= len(text) or stop == match.start():
            continue
        mark, after = match.group().rstrip(), text[stop]
        if "\n" not in match.group() and (
            after.islower() or (mark == "." and _ends_no_sentence(text, match.start()))
        ):
            continue
        starts.append(stop)
    return starts


def _ends_no_sentence(text: str, stop: int) -> bool:
    """Whether the full stop at `stop` is that of an initial, an abbreviation or the number of a list's item."""
    if _SHORTENED.search(text, max(0, stop - _LONGEST_SHORTENED), stop):
        return True
    digits = stop
    while digits > max(0, stop - _MOST_ITEM_DIGITS) and text[digits - 1].isdecimal():
        digits -= 1
    if digits == stop:
        return False
    at = digits
    while at and text[at - 1].isspace():
        at -= 1
        if text[at] == "\n":
            return True
    return at == 0


def token_pieces(tokenizer: PreTrainedTokenizerBase, token_ids: Sequence[int]) -> list[str]:
    """Return the text that each token adds to the text of those before it.

    Where several tokens spell one character the last of them has it, and the others add nothing.
    """
    pieces: list[str] = []
    # Decoded together with what came just before: a token by itself may lose its leading space.
    context, read = 0, 0
    before = ""
    for position in range(len(token_ids)):
        last = position + 1 == len(token_ids)
        text = tokenizer.decode(token_ids[context : position + 1], clean_up_tokenization_spaces=False)
        if text.endswith(_INCOMPLETE) and not last:
            pieces.append("")
            continue
        pieces.append(text[len(before) :])
        context, read = read, position + 1
        before = tokenizer.decode(token_ids[context:read], clean_up_tokenization_spaces=False)
    return pieces


def sentence_spans(tokenizer: PreTrainedTokenizerBase, encoded: EncodedExample) -> tuple[TokenSpan, ...]:
    """Cut an example's supervised tokens into sentences.

    Special tokens, such as the one that ends a turn, stand by themselves. Every supervised token is in one span, so
    what is summed over spans is summed over the answer.
    """
    special = set(tokenizer.all_special_ids)
    ids = encoded.input_ids.tolist()
    supervised = np.flatnonzero(encoded.supervised).tolist()
    spans: list[TokenSpan] = []
    # A position minus its rank is the same along a run.
    for _, run in groupby(
        enumerate(supervised), key=lambda pair: (pair[1] - pair[0], ids[pair[1]] in special)
    ):
        positions = [position for _, position in run]
        spans += _run_spans(tokenizer, ids, positions, whole=ids[positions[0]] in special)
    return tuple(spans)


def _run_spans(
    tokenizer: PreTrainedTokenizerBase, ids: Sequence[int], positions: Sequence[int], whole: bool
) -> list[TokenSpan]:
    pieces = token_pieces(tokenizer, [ids[position] for position in positions])
    text = "".join(pieces)
    starts = [0] if whole else sentence_starts(text)
    sentences: list[int] = []
    at = 0
    for piece in pieces:
        # A token belongs where its first visible character is: " The" to what "The" begins. White space alone stays
        # with what it follows.
        blank = len(piece) - len(piece.lstrip())
        first = at + (blank if blank < len(piece) else 0)
        sentences.append(bisect_right(starts, min(first, max(0, len(text) - 1))) - 1)
        at += len(piece)
    spans = []
    for _, members in groupby(range(len(positions)), key=sentences.__getitem__):
        inside = list(members)
        spans.append(
            TokenSpan(
                positions[inside[0]],
                positions[inside[-1]] + 1,
                "".join(pieces[inside[0] : inside[-1] + 1]),
            )
        )
    return spans
