from __future__ import annotations

import pytest
import torch

from gradian.ops.per_example_grad import per_example_grad, per_example_grads
from tests.tolerances import EPS, SUMS

SHAPES = [(1, 1, 1, 1), (2, 3, 5, 7), (3, 31, 33, 8), (4, 0, 3, 2)]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
IMPLEMENTATIONS = ["reference", "triton"]
# (t, i, o) of the layers of one launch: ranks of 1, primes, tiles +- 1, A and B shapes, no position at all.
LAYERS = [(33, 129, 4), (33, 4, 127), (32, 17, 65), (31, 1, 1), (0, 3, 2), (1, 67, 31)]


def outer_products(x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    """The definition, position by position, in float64."""
    total = torch.zeros(x.shape[0], g.shape[2], x.shape[2], dtype=torch.float64)
    for step in range(x.shape[1]):
        total += g[:, step, :, None].double() * x[:, step, None, :].double()
    return total


def integers(
    shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator, size: int = 3
) -> torch.Tensor:
    return torch.randint(-size, size + 1, shape, generator=generator).to(dtype)


def row_of(
    layers: list[tuple[int, int, int]], rows: int, dtype: torch.dtype
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """A block's rows, one element of something else before and behind each layer's, and the layers' places."""
    whole = torch.full((rows, 1 + sum(o * i + 1 for _, i, o in layers)), 7.0).to(dtype)
    places, offset = [], 1
    for _, i, o in layers:
        places.append(whole[:, offset : offset + o * i].unflatten(1, (o, i)))
        offset += o * i + 1
    return whole, places


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_small_integers_give_the_exact_sum_of_outer_products(
    shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    b, t, i, o = shape
    generator = torch.Generator().manual_seed(0)
    x, g = integers((b, t, i), dtype, generator), integers((b, t, o), dtype, generator)
    assert torch.equal(per_example_grad(x, g), outer_products(x, g).float())


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize(
    ("dtype", "stored"),
    [(torch.float32, torch.float32), (torch.bfloat16, torch.float16), (torch.float16, torch.bfloat16)],
)
def test_many_layers_are_exact_at_their_places_and_nothing_else_is_touched(
    dtype: torch.dtype, stored: torch.dtype, impl: str
) -> None:
    generator = torch.Generator().manual_seed(1)
    pairs = [
        (integers((2, t, i), dtype, generator), integers((2, t, o), dtype, generator)) for t, i, o in LAYERS
    ]
    for _, g in pairs:
        g[0] = 0  # an example without a supervised token
    whole, places = row_of(LAYERS, 2, stored)
    divisor = torch.tensor([4.0, 0.5])
    figures = per_example_grads(pairs, places, divisor, squares=True, impl=impl)
    exact = [outer_products(x, g) / divisor.double()[:, None, None] for x, g in pairs]
    for place, expected in zip(places, exact, strict=True):
        assert torch.equal(place, expected.to(stored))
        place.fill_(7.0)
    assert torch.equal(whole, torch.full_like(whole, 7.0))
    assert torch.equal(figures.largest, torch.stack([e.abs().amax((1, 2)).float() for e in exact]))
    assert figures.squares is not None
    assert torch.equal(figures.squares, torch.stack([e.square().sum((1, 2)) for e in exact]))


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_random_sums_are_within_the_bound_of_float32(dtype: torch.dtype, impl: str) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 257, 31, generator=generator).to(dtype)
    g = torch.randn(2, 257, 5, generator=generator).to(dtype)
    exact = torch.einsum("bto,bti->boi", g.double(), x.double())
    terms = torch.einsum("bto,bti->boi", g.double().abs(), x.double().abs())
    bound = SUMS["per_example_grad", dtype] * EPS
    error = (per_example_grad(x, g, impl=impl).double() - exact).abs()
    assert bool((error <= bound * terms).all())
    figures = per_example_grads([(x, g)], [torch.empty(2, 5, 31)], squares=True, impl=impl)
    assert figures.squares is not None
    norms = exact.square().sum((1, 2))
    # Twice the elements' own error, which the square doubles, and that of the sum.
    assert bool(((figures.squares[0] - norms).abs() <= 2 * bound * (terms * exact.abs()).sum((1, 2))).all())


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
@pytest.mark.filterwarnings("ignore:invalid value encountered")
@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("stored", [torch.float32, torch.float16, torch.bfloat16])
def test_every_kind_of_number_is_cast_as_torch_casts_it(stored: torch.dtype, impl: str) -> None:
    # Triton's interpreter knows no subnormal bfloat16.
    least = -126 if stored == torch.bfloat16 else -149
    exponents = torch.arange(least, 128, dtype=torch.float64)
    mantissas = torch.tensor(
        [1.0, 1.5, 1 + 2.0**-8, 1 + 3 * 2.0**-8, 1 + 2.0**-11, 1 + 3 * 2.0**-11, 2 - 2.0**-23]
    )
    values = (2.0 ** exponents[:, None] * mantissas.double()).float().flatten()
    special = [65504.0, 65519.9, 65520.0, 3.3895e38, 0.0, float("inf"), float("nan")]
    values = torch.cat([values, torch.tensor(special)])
    values = torch.cat([values, -values[values != 0]])
    # One position: the product with 1 is the value itself, but for -0, which a sum from +0 on cannot keep.
    x, g = values[None, None, :], torch.ones(1, 1, 1)
    out = torch.empty(1, 1, values.numel(), dtype=stored)
    figures = per_example_grads([(x, g)], [out], impl=impl)
    expected = values.to(stored)
    finite = ~torch.isnan(values)
    bits = torch.int32 if stored == torch.float32 else torch.int16
    assert torch.equal(out[0, 0].view(bits)[finite], expected.view(bits)[finite])
    assert bool(torch.isnan(out[0, 0][~finite]).all())
    assert bool(figures.largest.isnan().all())


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
@pytest.mark.filterwarnings("ignore:invalid value encountered")
@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_the_largest_magnitude_says_which_rows_do_not_fit_or_are_not_finite(impl: str) -> None:
    x = torch.ones(5, 1, 70)
    x[0, 0, 69], x[1, 0, 3], x[2, 0, 66], x[3, 0, 0] = 65519.9, -65520.0, float("nan"), float("-inf")
    out = torch.empty(5, 1, 70, dtype=torch.float16)
    largest = per_example_grads([(x, torch.ones(5, 1, 1))], [out], impl=impl).largest[0]
    assert torch.equal(largest.nan_to_num(nan=-1.0), x.abs().amax((1, 2)).nan_to_num(nan=-1.0))
    assert torch.isfinite(out).all(2).flatten().tolist() == torch.isfinite(largest.half()).tolist()
    assert torch.isfinite(largest.half()).tolist() == [True, False, False, False, True]


def test_layouts_and_mixed_dtypes_change_nothing() -> None:
    generator = torch.Generator().manual_seed(2)
    x = integers((2, 9, 40), torch.float32, generator)
    g = integers((2, 9, 3), torch.bfloat16, generator)
    expected = outer_products(x, g).float()
    # A view that begins at an odd address, a transposed one, and rows that all are one.
    shifted = torch.zeros(2, 9, 47)[:, :, 3:43].copy_(x)
    across = x.transpose(1, 2).contiguous().transpose(1, 2)
    for inputs in (x, shifted, across):
        assert torch.equal(per_example_grad(inputs, g, impl="triton"), expected)
    same = x[:1].expand(2, -1, -1)
    assert torch.equal(per_example_grad(same, g, impl="triton"), outer_products(same, g).float())


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="got"):
        per_example_grad(torch.zeros(2, 3, 4), torch.zeros(2, 4, 4))
    pair = (torch.zeros(2, 3, 4), torch.zeros(2, 3, 5))
    good = torch.zeros(2, 5, 4)
    with pytest.raises(ValueError, match="as many outputs as layers"):
        per_example_grads([pair], [])
    for bad in (
        torch.zeros(2, 4, 5),
        good.double(),
        torch.zeros(2, 4, 5).transpose(1, 2),
        torch.zeros(1, 5, 4),
    ):
        with pytest.raises(ValueError, match="contiguous within an example"):
            per_example_grads([pair], [bad])
    with pytest.raises(ValueError, match="float32 divisors"):
        per_example_grads([pair], [good], torch.ones(3))
