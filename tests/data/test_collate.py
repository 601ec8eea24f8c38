from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradian.data.collate import length_batches, pad_batch
from gradian.types import EncodedExample

LENGTHS = st.lists(st.integers(1, 40), max_size=40)


def encoded(length: int, position: int) -> EncodedExample:
    supervised = np.arange(length) % 3 == 1
    return EncodedExample(f"e-{position}", position, np.arange(100, 100 + length, dtype=np.int64), supervised)


@given(LENGTHS, st.integers(1, 9), st.none() | st.integers(1, 100))
def test_batches_hold_every_row_once_within_both_limits(
    lengths: list[int], size: int, most: int | None
) -> None:
    batches = length_batches(lengths, size, most)
    assert sorted(i for batch in batches for i in batch.tolist()) == list(range(len(lengths)))
    for batch in batches:
        longest = max(lengths[i] for i in batch)
        assert len(batch) <= size
        assert most is None or len(batch) == 1 or longest * len(batch) <= most


@given(LENGTHS, st.integers(1, 9))
def test_the_longest_rows_come_first_and_ties_keep_their_order(lengths: list[int], size: int) -> None:
    order = [int(i) for batch in length_batches(lengths, size) for i in batch]
    assert order == sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))


@given(st.lists(st.integers(1, 12), min_size=1, max_size=6), st.sampled_from(["left", "right"]))
def test_padding_is_undone_by_the_attention_mask(lengths: list[int], side: Literal["left", "right"]) -> None:
    rows = [encoded(length, i) for i, length in enumerate(lengths)]
    batch = pad_batch(rows, pad_id=7, side=side)
    assert batch.input_ids.shape == (len(rows), max(lengths))
    for i, row in enumerate(rows):
        real = batch.attention_mask[i] == 1
        assert batch.input_ids[i, real].tolist() == row.input_ids.tolist()
        assert batch.supervised[i, real].tolist() == row.supervised.tolist()
        assert batch.position_ids[i, real].tolist() == list(range(len(row)))
        assert set(batch.input_ids[i, ~real].tolist()) <= {7}
        assert not batch.supervised[i, ~real].any()
        assert bool(real[0 if side == "right" else -1])


def test_dtypes_are_what_the_model_takes() -> None:
    batch = pad_batch([encoded(3, 0)], 0)
    kinds = [a.dtype for a in (batch.input_ids, batch.attention_mask, batch.position_ids, batch.supervised)]
    assert kinds == [np.int64, np.int64, np.int64, np.bool_]


def test_an_empty_batch_and_a_batch_size_of_zero_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one row"):
        pad_batch([], 0)
    with pytest.raises(ValueError, match="at least 1"):
        length_batches([1], 0)
    assert length_batches([], 3) == []
