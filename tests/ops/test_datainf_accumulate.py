from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradian import _native
from gradian.ops.datainf_accumulate import datainf_accumulate
from gradian.ops.stored_rows import native_rows
from tests.ops.test_query_dots import DTYPES, SETS, SHAPES, integers, normal
from tests.tolerances import DATAINF, EPS


def run(segments, queries, scale, isa: str, threads: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    if isa == "reference":
        return datainf_accumulate(segments, queries, scale, impl="reference")
    found = _native.datainf_accumulate(*native_rows(segments), queries.numpy(), scale.numpy(), threads, isa)
    return torch.from_numpy(found[0]), torch.from_numpy(found[1])


@pytest.mark.parametrize("isa", SETS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_exact_sums_have_the_references_bits_on_any_number_of_threads(dtype, isa: str) -> None:
    # More rows than a tile (96 here) and than the float32 sums go on for (192 here).
    for rows, d, m in (*SHAPES, ((100, 95), 37, 3), ((97, 290), 200, 1)):
        segments = integers(rows, d, dtype)
        queries = integers((m,), d, torch.float32, seed=1)[0]
        # Few rows weigh, by powers of two, so that no sum needs more than 24 bits.
        scale = torch.zeros(sum(rows), dtype=torch.float64)
        scale[::5] = 2.0 ** -(torch.arange(len(scale[::5])) % 4)
        want = run(segments, queries, scale, "reference")
        g = torch.cat(segments).double()
        assert torch.equal(want[0], g @ queries.double().T)
        assert torch.equal(want[1], (want[0] * scale[:, None]).T @ g)
        for threads in (1, 2, 3):
            dots, total = run(segments, queries, scale, isa, threads)
            assert torch.equal(dots, want[0]), (rows, d, m, threads)
            assert torch.equal(total, want[1]), (rows, d, m, threads)


@pytest.mark.parametrize("isa", ["reference", *SETS])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rounding_stays_within_the_bound(dtype, isa: str) -> None:
    for rows, d, m in (*SHAPES, ((300, 301), 2, 2), ((999,), 1, 1)):
        segments, queries = normal(rows, d, dtype), normal((m,), d, torch.float32, seed=1)[0]
        scale = torch.rand(sum(rows), generator=torch.Generator().manual_seed(2), dtype=torch.float64)
        _, total = run(segments, queries, scale, isa)
        g, q = torch.cat(segments).double(), queries.double()
        magnitude = (scale[:, None] * (g.abs() @ q.abs().T)).T @ g.abs()
        error = (total - (scale[:, None] * (g @ q.T)).T @ g).abs()
        assert bool((error <= DATAINF * EPS * magnitude).all()), (rows, d, m)


@pytest.mark.parametrize("isa", SETS)
@given(
    seed=st.integers(0, 2**16),
    rows=st.lists(st.integers(0, 60), min_size=1, max_size=5),
    d=st.integers(1, 900),
    m=st.integers(1, 3),
)
def test_bits_depend_neither_on_chunks_nor_on_threads_and_dots_are_those_of_query_dots(
    isa: str, seed: int, rows: list[int], d: int, m: int
) -> None:
    segments, queries = normal(tuple(rows), d, torch.float16, seed), normal((m,), d, torch.float32)[0]
    scale = torch.rand(sum(rows), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    dots, total = run(segments, queries, scale, isa)
    for threads in (1, 2, 3):
        again = run([torch.cat(segments)], queries, scale, isa, threads)
        assert torch.equal(again[0], dots)
        assert torch.equal(again[1], total)
    alone = _native.query_dots(*native_rows(segments), queries.numpy(), 1, isa)
    assert np.array_equal(alone, dots.numpy())


@pytest.mark.parametrize("isa", SETS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("m", [1, 5])
def test_rows_may_start_at_any_address(m: int, dtype, isa: str) -> None:
    rows, queries = integers((5,), 1001, dtype)[0], integers((m,), 1001, torch.float32, seed=1)[0]
    scale = torch.ones(5, dtype=torch.float64)
    (aligned,), name = native_rows([rows])
    buffer = np.empty(aligned.nbytes + 64, dtype=np.uint8)
    want = run([rows], queries, scale, "reference")
    for offset in (1, 2, 34):
        moved = buffer[offset : offset + aligned.nbytes].view(aligned.dtype).reshape(aligned.shape)
        moved[:] = aligned
        dots, total = _native.datainf_accumulate([moved], name, queries.numpy(), scale.numpy(), 2, isa)
        assert np.array_equal(dots, want[0].numpy())
        assert np.array_equal(total, want[1].numpy())


@pytest.mark.parametrize("isa", ["reference", *SETS])
@pytest.mark.parametrize("m", [1, 5])
@pytest.mark.parametrize("bad", [torch.inf, torch.nan])
def test_a_row_that_is_not_finite_shows_in_the_sum(bad: float, m: int, isa: str) -> None:
    rows = torch.ones(7, 333, dtype=torch.float16)
    rows[3, 320] = bad
    dots, total = run([rows], torch.ones(m, 333), torch.ones(7, dtype=torch.float64), isa)
    assert torch.equal(dots.isfinite().all(dim=1), torch.arange(7) != 3)
    assert not bool(total.isfinite().any())


@pytest.mark.parametrize("impl", ["reference", "native"])
def test_no_rows_and_no_queries_are_empty_results(impl: str) -> None:
    none = torch.ones(0, dtype=torch.float64)
    dots, total = datainf_accumulate([], torch.ones(3, 5), none, impl=impl)
    assert dots.shape == (0, 3)
    assert torch.equal(total, torch.zeros(3, 5, dtype=torch.float64))
    one = torch.ones(2, dtype=torch.float64)
    dots, total = datainf_accumulate([torch.ones(2, 5)], torch.ones(0, 5), one, impl=impl)
    assert (dots.shape, total.shape) == ((2, 0), (0, 5))


@pytest.mark.parametrize("impl", ["reference", "native"])
@pytest.mark.parametrize("m", [1, 4])
def test_the_sum_is_the_same_where_the_dots_are_not_kept(m: int, impl: str) -> None:
    segments, queries = normal((70, 3), 500, torch.float16), normal((m,), 500, torch.float32)[0]
    scale = torch.rand(73, dtype=torch.float64)
    _, want = datainf_accumulate(segments, queries, scale, impl=impl)
    dots, total = datainf_accumulate(segments, queries, scale, keep_dots=False, impl=impl)
    assert dots is None
    assert torch.equal(total, want)


def test_what_does_not_fit_is_refused() -> None:
    rows, queries, scale = torch.ones(2, 5), torch.ones(3, 5), torch.ones(2, dtype=torch.float64)
    for segments, given_queries, given_scale, message in (
        ([rows], torch.ones(3, 4), scale, r"\[rows, 4\]"),
        ([rows], queries.double(), scale, "queries float32"),
        ([rows], queries, scale.float(), "float64 scale per row"),
        ([rows, rows], queries, scale, "one float64 scale per row"),
    ):
        with pytest.raises(ValueError, match=message):
            datainf_accumulate(segments, given_queries, given_scale)
    with pytest.raises(ValueError, match="at least 1"):
        datainf_accumulate([rows], queries, scale, threads=0)
    with pytest.raises(ValueError, match="one scale per row"):
        _native.datainf_accumulate([rows.numpy()], "float32", queries.numpy(), np.ones(3), 1)
