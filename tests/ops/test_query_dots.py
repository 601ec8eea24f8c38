from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradian import _native
from gradian.errors import OpUnavailableError
from gradian.ops.query_dots import query_dots
from gradian.ops.stored_rows import native_rows
from tests.tolerances import EPS, SUMS

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
SETS = _native.instruction_sets()
# (rows of each segment, d, m): ones, primes, a vector, a piece (192 to 768 columns) and a slice +- 1.
SHAPES = [
    ((1,), 1, 1),
    ((3, 0, 2), 15, 2),
    ((5,), 16, 1),
    ((7, 1), 17, 3),
    ((23, 2), 191, 4),
    ((24,), 193, 5),
    ((4, 4, 17), 769, 1),
    ((13,), 3071, 7),
    ((3, 3), 12289, 1),
    ((2, 9), 25013, 17),
]


def integers(rows: tuple[int, ...], d: int, dtype: torch.dtype, seed: int = 0) -> list[torch.Tensor]:
    """Segments of small integers: any order of summation gives the same bits."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(-4, 5, (n, d), generator=generator).to(dtype) for n in rows]


def normal(rows: tuple[int, ...], d: int, dtype: torch.dtype, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(n, d, generator=generator).to(dtype) for n in rows]


@pytest.mark.parametrize("isa", SETS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_exact_sums_have_the_references_bits_on_any_number_of_threads(dtype, isa: str) -> None:
    for rows, d, m in SHAPES:
        segments = integers(rows, d, dtype)
        queries = integers((m,), d, torch.float32, seed=1)[0] / 8
        want = query_dots(segments, queries, impl="reference")
        assert torch.equal(want, torch.cat(segments).double() @ queries.double().T)
        for threads in (1, 2, 3):
            got = _native.query_dots(*native_rows(segments), queries.numpy(), threads, isa)
            assert got.tobytes() == want.numpy().tobytes(), (rows, d, m, threads)


@pytest.mark.parametrize("isa", ["reference", *SETS])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rounding_stays_within_the_bound(dtype, isa: str) -> None:
    for rows, d, m in (*SHAPES, ((40,), 65536, 1)):
        segments, queries = normal(rows, d, dtype), normal((m,), d, torch.float32, seed=1)[0]
        if isa == "reference":
            got = query_dots(segments, queries, impl="reference")
        else:
            got = torch.from_numpy(_native.query_dots(*native_rows(segments), queries.numpy(), 1, isa))
        g, q = torch.cat(segments).double(), queries.double()
        error = (got - g @ q.T).abs()
        assert bool((error <= SUMS["query_dots", dtype] * EPS * (g.abs() @ q.abs().T)).all()), (rows, d, m)


@pytest.mark.parametrize("isa", SETS)
@given(data=st.data(), d=st.integers(1, 900), m=st.integers(1, 5))
def test_a_rows_bits_depend_on_no_other_row_and_no_other_query(isa: str, data, d: int, m: int) -> None:
    rows = data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=4))
    segments, queries = normal(tuple(rows), d, torch.float16), normal((m,), d, torch.float32, seed=1)[0]
    threads = data.draw(st.integers(1, 3))
    whole = _native.query_dots(*native_rows(segments), queries.numpy(), threads, isa)
    for row, values in zip(torch.cat(segments), whole, strict=True):
        for query, value in zip(queries, values, strict=True):
            alone = _native.query_dots(*native_rows([row[None]]), query[None].numpy(), 1, isa)
            assert alone.tobytes() == value.tobytes()


@pytest.mark.parametrize("isa", SETS)
def test_every_16_bit_pattern_widens_to_the_same_bits_as_its_format_says(isa: str) -> None:
    words = np.arange(1 << 16, dtype=np.uint16)
    sign, exponent, fraction = words >> 15, (words >> 10) & 31, (words & 1023).astype(np.uint32)
    finite = np.where(
        exponent == 0,
        np.ldexp(fraction / 1024, -14),
        np.ldexp(1 + fraction / 1024, exponent.astype(int) - 15),
    )
    bits = finite.astype(np.float32).view(np.uint32)
    quiet = np.where(fraction > 0, 0x00400000, 0)  # as the hardware does
    bits = np.where(exponent == 31, 0x7F800000 | fraction << 13 | quiet, bits)
    bits = bits.astype(np.uint32) | sign.astype(np.uint32) << 31
    # Every pattern in every lane and in the copied rest.
    for shift in (0, 1, 7):
        got = _native.widen(np.roll(words, shift)[: (1 << 16) - shift].view(np.float16), "float16", isa)
        assert np.array_equal(got.view(np.uint32), np.roll(bits, shift)[: (1 << 16) - shift])
        got = _native.widen(np.roll(words, shift)[: (1 << 16) - shift], "bfloat16", isa)
        assert np.array_equal(
            got.view(np.uint32), np.roll(words, shift)[: (1 << 16) - shift].astype(np.uint32) << 16
        )


@pytest.mark.parametrize("isa", SETS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("m", [1, 5])
def test_rows_may_start_at_any_address(m: int, dtype, isa: str) -> None:
    rows, queries = integers((5,), 1001, dtype)[0], integers((m,), 1001, torch.float32, seed=1)[0]
    (aligned,), name = native_rows([rows])
    buffer = np.empty(aligned.nbytes + 64, dtype=np.uint8)
    want = query_dots([rows], queries, impl="reference").numpy()
    for offset in (1, 2, 6, 34):
        moved = buffer[offset : offset + aligned.nbytes].view(aligned.dtype).reshape(aligned.shape)
        moved[:] = aligned
        assert np.array_equal(_native.query_dots([moved], name, queries.numpy(), 2, isa), want)


@pytest.mark.parametrize("isa", SETS)
@pytest.mark.parametrize("m", [1, 5])
@pytest.mark.parametrize("bad", [torch.inf, -torch.inf, torch.nan])
def test_a_row_that_is_not_finite_spoils_itself_alone(bad: float, m: int, isa: str) -> None:
    rows = torch.ones(7, 333, dtype=torch.float16)
    rows[3, 320] = bad
    got = _native.query_dots(*native_rows([rows]), np.ones((m, 333), np.float32), 1, isa)
    assert np.array_equal(np.isfinite(got).all(axis=1), np.arange(7) != 3)


@pytest.mark.parametrize("impl", ["reference", "native"])
def test_no_rows_and_no_queries_are_empty_results(impl: str) -> None:
    assert query_dots([], torch.ones(3, 5), impl=impl).shape == (0, 3)
    assert query_dots([torch.ones(0, 5)], torch.ones(3, 5), impl=impl).shape == (0, 3)
    assert query_dots([torch.ones(2, 5)], torch.ones(0, 5), impl=impl).shape == (2, 0)


def test_what_does_not_fit_is_refused() -> None:
    rows, queries = torch.ones(2, 5), torch.ones(3, 5)
    for segments, given_queries, message in (
        ([rows], torch.ones(3, 4), r"\[rows, 4\]"),
        ([rows], queries.half(), "queries float32"),
        ([rows], queries[0], "queries float32"),
        ([rows, rows.half()], queries, "one dtype"),
        ([rows.double()], queries, "one dtype"),
        ([rows[0]], queries, r"\[rows, 5\]"),
        ([torch.ones(5, 2).T], queries, "contiguous"),
    ):
        with pytest.raises(ValueError, match=message):
            query_dots(segments, given_queries)
    with pytest.raises(ValueError, match="at least 1"):
        query_dots([rows], queries, threads=0)
    with pytest.raises(OpUnavailableError, match="no triton implementation"):
        query_dots([rows], queries, impl="triton")


def test_the_extension_itself_reads_nothing_that_does_not_fit() -> None:
    rows, queries = np.ones((2, 5), np.float32), np.ones((3, 5), np.float32)
    wrong: list[tuple[object, str, object, str]] = [
        ([rows.astype(np.float16)], "float32", queries, "dtype named"),
        ([rows], "float16", queries, "dtype named"),
        ([rows.astype(np.float16)], "bfloat16", queries, "dtype named"),
        ([rows.astype(">f4")], "float32", queries, "dtype named"),
        ([rows], "float64", queries, "not float64"),
        ([rows[:, :4]], "float32", queries, "columns of the queries"),
        ([np.ones((2, 10), np.float32)[:, ::2]], "float32", queries, "contiguous"),
        ([rows[0]], "float32", queries, "columns of the queries"),
        ([[1.0]], "float32", queries, "list of arrays"),
        ([rows], "float32", queries[0], "matrix"),
    ]
    for segments, dtype, given_queries, message in wrong:
        with pytest.raises(ValueError, match=message):
            _native.query_dots(segments, dtype, given_queries, 1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no instruction set called 'mmx'"):
        _native.query_dots([rows], "float32", queries, 1, "mmx")
