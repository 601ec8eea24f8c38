"""Eval items looked up among the training rows: exactly, by their question alone, and by similarity."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gradian.checks.audit import Audit
from gradian.checks.near_duplicates import matches, sketch
from gradian.checks.turn_keys import KeyArray, TurnKeys, row_text, turn_keys
from gradian.types import BoolArray, IntArray

_PAIRING = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, eq=False)
class EvalOverlap:
    """How m eval items meet the training rows; an item has one kind at most.

    Attributes:
        same: question and answer are in a training row, bool [m].
        other_answer: the question is, with other answers only, bool [m].
        near: the item is similar to a training row, bool [m].
        templated: it is similar to so many that they share a template, bool [m].
        same_rows, other_rows, near_rows: the training rows concerned, 0-based, in order.
    """

    same: BoolArray
    other_answer: BoolArray
    near: BoolArray
    templated: BoolArray
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
    items = audit.eval_dataset.examples if audit.eval_dataset else ()
    same, other, same_rows, other_rows = exact_overlap(audit)
    found = matches(sketch(row_text(item) for item in items), audit.sketches, limits.contamination_similarity)
    similar = (found.index >= 0) & ~same & ~other
    templated = similar & (found.crowd > limits.template_rows)
    near = similar & ~templated
    return EvalOverlap(
        same, other, near, templated, same_rows, other_rows, np.unique(found.index[near]).astype(np.int64)
    )


def _pairs(keys: TurnKeys) -> KeyArray:
    return np.asarray(keys.prompt * _PAIRING + keys.answer, dtype=np.uint64)
