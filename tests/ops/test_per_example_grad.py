from __future__ import annotations

import pytest
import torch

from gradian.ops.per_example_grad import per_example_grad
from tests.tolerances import EPS, SUMS

SHAPES = [(1, 1, 1, 1), (2, 3, 5, 7), (3, 31, 33, 8), (4, 0, 3, 2)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_small_integers_give_the_exact_sum_of_outer_products(
    shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    b, t, i, o = shape
    x = torch.randint(-3, 4, (b, t, i)).to(dtype)
    g = torch.randint(-3, 4, (b, t, o)).to(dtype)
    expected = torch.zeros(b, o, i)
    for example in range(b):
        for step in range(t):
            expected[example] += torch.outer(g[example, step].float(), x[example, step].float())
    assert torch.equal(per_example_grad(x, g), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_random_sums_are_within_the_bound_of_float32(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, 257, 31, generator=generator).to(dtype)
    g = torch.randn(3, 257, 5, generator=generator).to(dtype)
    exact = torch.einsum("bto,bti->boi", g.double(), x.double())
    terms = torch.einsum("bto,bti->boi", g.double().abs(), x.double().abs())
    error = (per_example_grad(x, g).double() - exact).abs()
    assert bool((error <= SUMS["per_example_grad", dtype] * EPS * terms).all())


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="got"):
        per_example_grad(torch.zeros(2, 3, 4), torch.zeros(2, 4, 4))
