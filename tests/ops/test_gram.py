from __future__ import annotations

import pytest
import torch

from gradian.ops.gram import OP, gram
from tests.tolerances import EPS, SUMS

CPU = torch.device("cpu")
IMPLS = [name for name in ("reference", "native") if OP.obstacle(name, CPU, torch.float32) is None]
DTYPES = [torch.float32, torch.float16]
# Rows of each segment, and the width: one, primes, a tile and one more or less of it.
SHAPES = [
    ((1,), 1),
    ((1, 1, 1), 7),
    ((13, 1, 6), 31),
    ((127, 130), 33),
    ((256, 1), 257),
    ((255, 5), 1023),
    ((4, 3), 4097),
    ((3,), 9001),
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


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("counts", "d"), SHAPES)
def test_small_integers_give_the_exact_products(impl, dtype, counts, d) -> None:
    rows = segments(counts, d, dtype, "integers")
    whole = torch.cat(rows).double()
    got = gram(rows, impl=impl)
    assert got.dtype == torch.float32
    assert torch.equal(got.double(), whole @ whole.T)


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["normal", "positive"])
@pytest.mark.parametrize(("counts", "d"), [*SHAPES, ((200,), 512), ((60, 40), 20011)])
def test_sums_are_within_the_bound_of_a_float32_product_and_symmetric(impl, dtype, kind, counts, d) -> None:
    rows = segments(counts, d, dtype, kind)
    whole = torch.cat(rows).double()
    terms = whole.abs() @ whole.abs().T
    got = gram(rows, impl=impl)
    assert bool(((got.double() - whole @ whole.T).abs() <= SUMS["gram", dtype] * EPS * terms).all())
    assert torch.equal(got, got.T)


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_bits_depend_neither_on_the_threads_nor_on_the_run(impl, dtype) -> None:
    rows = segments((150, 151, 7), 4100, dtype, "normal")
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 3, 3):
            torch.set_num_threads(threads)
            results.append(gram(rows, threads=threads, impl=impl))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(result, results[0]) for result in results)


@pytest.mark.parametrize("impl", IMPLS)
def test_a_row_that_is_not_finite_spoils_its_own_products_only(impl) -> None:
    (rows,) = segments((9,), 70, torch.float32, "normal")
    clean = gram([rows], impl=impl)
    rows[4, 3] = float("nan")
    got = gram([rows], impl=impl)
    kept = [i for i in range(9) if i != 4]
    assert bool(got[4].isnan().all())
    assert bool(got[:, 4].isnan().all())
    assert torch.equal(got[kept][:, kept], clean[kept][:, kept])


@pytest.mark.parametrize("impl", IMPLS)
def test_rows_may_begin_anywhere_in_memory(impl) -> None:
    (rows,) = segments((6,), 131, torch.float32, "integers")
    store = torch.zeros(rows.numel() + 3)
    store[3:] = rows.reshape(-1)
    shifted = store[3:].reshape(rows.shape)
    assert torch.equal(gram([shifted], impl=impl), gram([rows], impl=impl))


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [torch.zeros(3)],
        [torch.zeros(2, 3, dtype=torch.float64)],
        [torch.zeros(2, 3), torch.zeros(2, 4)],
        [torch.zeros(2, 3), torch.zeros(2, 3, dtype=torch.float16)],
    ],
)
def test_segments_that_do_not_fit_are_refused(rows) -> None:
    with pytest.raises(ValueError, match="want"):
        gram(rows)


def test_no_threads_are_refused() -> None:
    with pytest.raises(ValueError, match="threads"):
        gram([torch.zeros(1, 1)], threads=0)
