"""Eval items looked up among the training rows: exactly, by their question alone, and by similarity."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gradian.checks.answers import words_of
from gradian.checks.audit import Audit
from gradian.checks.near_duplicates import matches, sketch
from gradian.checks.turn_keys import KeyArray, TurnKeys, row_text, turn_keys
from gradian.types import BoolArray, Example, IntArray

_SAME_ANSWER = 0.5  # Share of words in common from which two answers are one.
_LABEL_WORDS = 3
_SEVERAL = 3
_PAIRING = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, eq=False)
class EvalOverlap:
    """How m eval items meet the training rows; an item has one kind at most.

    Attributes:
        same: question and answer are in a training row, bool [m].
        other_answer: the question is, with other answers only, bool [m].
        near: the item is similar to a training row that asks for the same, bool [m].
        templated: it is similar to so many that they share a template, bool [m].
        neighbour: it is similar to a training row that asks for something else, bool [m].
        same_rows, other_rows, near_rows: the training rows concerned, 0-based, in order.
    """

    same: BoolArray
    other_answer: BoolArray
    near: BoolArray
    templated: BoolArray
    neighbour: BoolArray
    same_rows: IntArray
    other_rows: IntArray
    near_rows: IntArray


def exact_overlap(audit: Audit) -> tuple[BoolArray, BoolArray, IntArray, IntArray]:
    """Return `same`, `other_answer`, `same_rows` and `other_rows` of `EvalOverlap`; hashes alone are compared."""
    items = tuple(audit.eval_dataset.examples) if audit.eval_dataset else ()
    asked, trained = turn_keys(items), audit.turn_keys
    wanted = asked.final
    same = np.zeros(len(items), dtype=np.bool_)
    same[asked.row[wanted & np.isin(_pairs(asked), _pairs(trained)) & (asked.answer != 0)]] = True
    prompt = np.zeros(len(items), dtype=np.bool_)
    prompt[asked.row[wanted & np.isin(asked.prompt, trained.prompt) & (asked.prompt != 0)]] = True
    prompt &= ~same
    same_rows = trained.row[np.isin(_pairs(trained), _pairs(asked)[same[asked.row] & wanted])]
    other_rows = trained.row[np.isin(trained.prompt, asked.prompt[prompt[asked.row] & wanted])]
    return same, prompt, np.unique(same_rows), np.unique(other_rows)


def eval_overlap(audit: Audit) -> EvalOverlap:
    """Look every eval item up; see `EvalOverlap`."""
    limits = audit.limits.data
    items = tuple(audit.eval_dataset.examples) if audit.eval_dataset else ()
    same, other, same_rows, other_rows = exact_overlap(audit)
    found = matches(sketch(row_text(item) for item in items), audit.sketches, limits.contamination_similarity)
    similar = (found.index >= 0) & ~same & ~other
    templated = similar & (found.crowd > limits.template_rows)
    near = similar & ~templated
    neighbour = np.zeros(len(items), dtype=np.bool_)
    for i in np.flatnonzero(near):
        neighbour[i] = asks_something_else(
            items[i], audit.examples[int(found.index[i])], several=bool(found.widest[i] >= _SEVERAL)
        )
    near &= ~neighbour
    near_rows = np.unique(found.index[near]).astype(np.int64)
    return EvalOverlap(same, other, near, templated, neighbour, same_rows, other_rows, near_rows)


def asks_something_else(item: Example, row: Example, *, several: bool) -> bool:
    """Whether two similar rows share their frame (a passage, a schema, worked examples) and not what is asked.

    Their answers tell: a copy has the same one, give or take a word. Answers of a word or two are too few to tell, so
    that these rows count as different where words of the question were exchanged and `several` rows are as similar.
    """
    if not item.messages or not row.messages:
        return False
    said, taught = set(words_of(item.target)), set(words_of(row.target))
    if len(said & taught) < _SAME_ANSWER * len(said | taught):
        return True
    return several and len(said) <= _LABEL_WORDS and _exchanged(_asked(item), _asked(row))


def _exchanged(text: str, other: str) -> bool:
    """Whether both texts have words of their own between what they begin and end with in common."""
    ours, theirs = words_of(text), words_of(other)
    for _ in range(2):
        shared = 0
        for one, another in zip(ours, theirs, strict=False):
            if one != another:
                break
            shared += 1
        ours, theirs = ours[shared:][::-1], theirs[shared:][::-1]
    return bool(ours and theirs)


def _asked(example: Example) -> str:
    return "\n".join(turn.content for turn in example.messages[:-1])


def _pairs(keys: TurnKeys) -> KeyArray:
    return np.asarray(keys.prompt * _PAIRING + keys.answer, dtype=np.uint64)
