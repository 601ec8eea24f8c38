from __future__ import annotations

import numpy as np
import pytest
import torch

from gradian import _native
from gradian.ops.gram import gram
from gradian.ops.stored_rows import native_rows
from tests.tolerances import EPS, SUMS

# The reference, and the compiled code on every instruction set of this machine.
WAYS = ["reference", *_native.instruction_sets()]
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
# Rows of each segment, and d: ones, primes; a panel (64 rows), a tile (256), a piece of columns (192 to 768) +- 1.
SHAPES = [
    ((1,), 1),
    ((1, 1, 1), 7),
    ((13, 1, 6), 31),
    ((64, 0, 1), 33),
    ((63, 66), 191),
    ((127, 130), 193),
    ((256, 1), 15),
    ((4, 3), 3071),
    ((5,), 12289),
]


def segments(counts: tuple[int, ...], d: int, dtype: torch.dtype, kind: str) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(sum(counts) * d)
    n = sum(counts)
    if kind == "integers":
        rows = torch.randint(-4, 5, (n, d), generator=generator).to(dtype)
    elif kind == "normal":
        rows = torch.randn(n, d, generator=generator).to(dtype)
    else:
        # Every term of every sum has one sign: nothing cancels, so every rounding shows.
        rows = torch.rand(n, d, generator=generator).to(dtype)
    return list(rows.split(counts))


def products(rows: list[torch.Tensor], way: str, threads: int = 1) -> torch.Tensor:
    if way == "reference":
        return gram(rows, threads=threads, impl="reference")
    return torch.from_numpy(_native.gram(*native_rows(rows), rows[0].shape[1], threads, way))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("counts", "d"), SHAPES)
def test_small_integers_give_the_exact_products(way, dtype, counts, d) -> None:
    rows = segments(counts, d, dtype, "integers")
    whole = torch.cat(rows).double()
    got = products(rows, way)
    assert got.dtype == torch.float32
    assert torch.equal(got.double(), whole @ whole.T)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["normal", "positive"])
@pytest.mark.parametrize(("counts", "d"), [*SHAPES, ((150,), 512), ((33,), 20011)])
def test_sums_are_within_the_bound_of_a_float32_product_and_symmetric(way, dtype, kind, counts, d) -> None:
    rows = segments(counts, d, dtype, kind)
    whole = torch.cat(rows).double()
    terms = whole.abs() @ whole.abs().T
    got = products(rows, way)
    assert bool(((got.double() - whole @ whole.T).abs() <= SUMS["gram", dtype] * EPS * terms).all())
    assert torch.equal(got, got.T)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_bits_depend_neither_on_the_threads_nor_on_the_run(way, dtype) -> None:
    rows = segments((90, 71, 7), 2100, dtype, "normal")
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 3, 3):
            torch.set_num_threads(threads)
            results.append(products(rows, way, threads))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(result, results[0]) for result in results)


@pytest.mark.parametrize("way", WAYS)
def test_a_row_that_is_not_finite_spoils_its_own_products_only(way) -> None:
    (rows,) = segments((9,), 70, torch.float32, "normal")
    clean = products([rows], way)
    rows[4, 3] = float("nan")
    got = products([rows], way)
    kept = [i for i in range(9) if i != 4]
    assert bool(got[4].isnan().all())
    assert bool(got[:, 4].isnan().all())
    assert torch.equal(got[kept][:, kept], clean[kept][:, kept])


@pytest.mark.parametrize("way", WAYS)
def test_rows_may_begin_anywhere_in_memory(way) -> None:
    (rows,) = segments((6,), 131, torch.float32, "integers")
    store = torch.zeros(rows.numel() + 3)
    store[3:] = rows.reshape(-1)
    shifted = store[3:].reshape(rows.shape)
    assert torch.equal(products([shifted], way), products([rows], way))


@pytest.mark.parametrize("way", WAYS[1:])
def test_the_compiled_products_do_not_depend_on_where_chunks_end_or_on_the_rows_around(way) -> None:
    rows = torch.cat(segments((131,), 1000, torch.float16, "normal"))
    whole = products([rows], way, 2)
    assert torch.equal(products(list(rows.split(17)), way), whole)
    assert torch.equal(products([rows[60:70].clone()], way), whole[60:70, 60:70])


def test_compiled_code_runs_where_it_is_built() -> None:
    rows = segments((3, 2), 100, torch.float32, "normal")
    assert torch.equal(gram(rows, threads=2), gram(rows, impl="native"))


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [torch.zeros(3)],
        [torch.zeros(2, 3, dtype=torch.float64)],
        [torch.zeros(2, 3), torch.zeros(2, 4)],
        [torch.zeros(2, 3), torch.zeros(2, 3, dtype=torch.float16)],
        [torch.zeros(3, 2).T],
    ],
)
def test_segments_that_do_not_fit_are_refused(rows) -> None:
    with pytest.raises(ValueError, match="want"):
        gram(rows)


def test_compiled_code_checks_what_it_would_read() -> None:
    with pytest.raises(ValueError, match="columns"):
        _native.gram([np.zeros((2, 3), np.float32)], "float32", 4, 1)


def test_no_threads_are_refused() -> None:
    with pytest.raises(ValueError, match="threads"):
        gram([torch.zeros(1, 1)], threads=0)
