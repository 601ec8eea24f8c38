"""Batches: rows of similar length together, padded, with positions that count real tokens only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from gradian.types import BoolArray, EncodedExample, IntArray


@dataclass(frozen=True, eq=False)
class PaddedBatch:
    """One rectangle of rows.

    Attributes:
        input_ids: int64 [b, t].
        attention_mask: int64 [b, t]; 1 at real tokens.
        position_ids: int64 [b, t]; 0, 1, ... over the real tokens, 0 at padding.
        supervised: bool [b, t]; False at padding and at each row's first token.
    """

    input_ids: IntArray
    attention_mask: IntArray
    position_ids: IntArray
    supervised: BoolArray


def length_batches(lengths: Sequence[int], batch_size: int, max_tokens: int | None = None) -> list[IntArray]:
    """Splits rows into batches of similar length, the longest first (so memory runs out at once or never).

    Args:
        lengths: tokens of each row, [n].
        batch_size: most rows in a batch.
        max_tokens: most cells (rows x longest row) in a batch; a single longer row still gets its own.

    Returns:
        Row indices of each batch, int64 [b]. Every row is in exactly one batch; equal lengths keep their order.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, not {batch_size}")
    order = np.argsort(-np.asarray(lengths, dtype=np.int64), kind="stable").astype(np.int64)
    batches = []
    start = 0
    while start < len(order):
        rows = batch_size
        if max_tokens is not None:
            rows = min(rows, max(1, max_tokens // max(1, int(lengths[order[start]]))))
        batches.append(order[start : start + rows])
        start += rows
    return batches


def pad_batch(
    encoded: Sequence[EncodedExample], pad_id: int, side: Literal["left", "right"] = "right"
) -> PaddedBatch:
    """Pads rows to their longest.

    Args:
        encoded: the rows, [b], b >= 1.
        pad_id: token id at padding; never read by the loss nor attended to.
        side: where the padding goes; `left` for generation.
    """
    if not encoded:
        raise ValueError("a batch needs at least one row")
    shape = (len(encoded), max(len(row) for row in encoded))
    input_ids = np.full(shape, pad_id, dtype=np.int64)
    attention_mask = np.zeros(shape, dtype=np.int64)
    position_ids = np.zeros(shape, dtype=np.int64)
    supervised = np.zeros(shape, dtype=np.bool_)
    for i, row in enumerate(encoded):
        length = len(row)
        cells = slice(0, length) if side == "right" else slice(shape[1] - length, shape[1])
        input_ids[i, cells] = row.input_ids
        attention_mask[i, cells] = 1
        position_ids[i, cells] = np.arange(length)
        supervised[i, cells] = row.supervised
    return PaddedBatch(input_ids, attention_mask, position_ids, supervised)
