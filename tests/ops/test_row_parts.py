"""Rows of a block that come one segment after the other: the same bits, and only a part of them held."""

from __future__ import annotations

import weakref
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradian.ops import stored_rows
from gradian.ops.datainf_accumulate import datainf_accumulate
from gradian.ops.query_dots import query_dots

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
IMPLS = ["native", "reference"]


def segments(counts: list[int], d: int, dtype: torch.dtype) -> list[torch.Tensor]:
    rng = np.random.default_rng(0)
    return [torch.from_numpy(rng.standard_normal((n, d), dtype=np.float32)).to(dtype) for n in counts]


@pytest.mark.parametrize("impl", IMPLS)
@given(
    counts=st.lists(st.integers(1, 300), min_size=1, max_size=9),
    d=st.sampled_from([1, 31, 200]),
    m=st.sampled_from([1, 5]),
    dtype=st.sampled_from(DTYPES),
    part=st.integers(1, 200_000),
)
def test_rows_that_arrive_give_the_bits_of_rows_that_are_there(
    impl: str, counts: list[int], d: int, m: int, dtype: torch.dtype, part: int
) -> None:
    rows, queries = segments(counts, d, dtype), torch.randn(m, d, generator=torch.manual_seed(0))
    scale = torch.rand(sum(counts), dtype=torch.float64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stored_rows, "PART_BYTES", part)
        dots = query_dots(iter(rows), queries, impl=impl)
        kept, total = datainf_accumulate(iter(rows), queries, scale, impl=impl)
        _, alone = datainf_accumulate(iter(rows), queries, scale, keep_dots=False, impl=impl)
    assert torch.equal(dots, query_dots(rows, queries, impl=impl))
    wanted, wanted_total = datainf_accumulate(rows, queries, scale, impl=impl)
    assert kept is not None
    assert wanted is not None
    assert torch.equal(kept, wanted)
    assert torch.equal(total, wanted_total)
    assert torch.equal(alone, wanted_total)


@pytest.mark.parametrize("impl", IMPLS)
def test_rows_that_arrive_are_let_go(impl: str, monkeypatch: pytest.MonkeyPatch) -> None:
    d, rows, count = 64, 96, 60
    size = 4 * d * rows
    # Room for a panel of datainf_accumulate, which holds 256 rows at most.
    monkeypatch.setattr(stored_rows, "PART_BYTES", 4 * size)
    alive = most = 0

    def gone() -> None:
        nonlocal alive
        alive -= 1

    def arriving() -> Iterator[torch.Tensor]:
        nonlocal alive, most
        for _ in range(count):
            values = np.ones((rows, d), dtype=np.float32)
            weakref.finalize(values, gone)
            alive += 1
            most = max(most, alive)
            yield torch.from_numpy(values)
            del values

    queries = torch.ones(3, d)
    query_dots(arriving(), queries, impl=impl)
    assert most <= 6
    datainf_accumulate(arriving(), queries, torch.ones(rows * count, dtype=torch.float64), impl=impl)
    # A part, what is over from a panel, and the one that is coming.
    assert most <= 9


@pytest.mark.parametrize("impl", IMPLS)
def test_no_rows_at_all_give_nothing(impl: str) -> None:
    queries = torch.ones(2, 3)
    assert query_dots(iter([]), queries, impl=impl).shape == (0, 2)
    dots, total = datainf_accumulate(iter([]), queries, torch.ones(0, dtype=torch.float64), impl=impl)
    assert dots is not None
    assert dots.shape == (0, 2)
    assert torch.equal(total, torch.zeros(2, 3, dtype=torch.float64))


def test_rows_that_arrive_are_checked_like_rows_that_are_there() -> None:
    queries = torch.ones(2, 3)
    with pytest.raises(ValueError, match="want rows"):
        query_dots(iter([torch.ones(2, 4)]), queries)
    with pytest.raises(ValueError, match="one dtype"):
        query_dots(iter([torch.ones(2, 3), torch.ones(2, 3).half()]), queries)


def test_where_address_space_is_short_fewer_threads_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert stored_rows.thread_count(64) == 64
    monkeypatch.setattr(stored_rows, "address_space_left", lambda: 1 << 30)
    assert stored_rows.thread_count(64) == 7
    assert stored_rows.thread_count(2) == 2
    monkeypatch.setattr(stored_rows, "address_space_left", lambda: 0)
    assert stored_rows.thread_count(64) == 1
    with pytest.raises(ValueError, match="at least 1"):
        stored_rows.thread_count(0)
