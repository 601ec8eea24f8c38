from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import gradian.ops.cross_entropy as module
from gradian.ops.cross_entropy import cross_entropy
from tests.tolerances import CROSS_ENTROPY_FLOOR, CROSS_ENTROPY_GRADIENT_RATIO, CROSS_ENTROPY_ULPS

DTYPES = tuple(CROSS_ENTROPY_ULPS)


def case(rows: int, vocabulary: int, scale: float, dtype: torch.dtype, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    logits = (torch.randn(rows, vocabulary, generator=generator) * scale).to(dtype)
    targets = torch.randint(0, vocabulary, (rows,), generator=generator)
    # Confident rows have tiny losses, where a careless formula cancels.
    targets[::2] = logits[::2].float().argmax(dim=1)
    return logits, targets


def truth(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.double(), targets, reduction="none")


def gradients(logits: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor, loss) -> torch.Tensor:
    leaf = logits.clone().requires_grad_(True)
    (loss(leaf.clone(), targets) * weights.to(leaf.dtype)).sum().backward()
    return leaf.grad.double()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocabulary", [1, 2, 67, 1009, 50257])
@pytest.mark.parametrize("scale", [0.1, 1.0, 5.0, 20.0])
def test_each_token_is_within_two_units_in_the_last_place(
    vocabulary: int, scale: float, dtype: torch.dtype
) -> None:
    logits, targets = case(13, vocabulary, scale, dtype)
    expected = truth(logits, targets)
    ulp = 2.0 ** (expected.clamp(min=CROSS_ENTROPY_FLOOR).log2().floor() - 23)
    error = (cross_entropy(logits, targets).double() - expected).abs()
    assert bool((error <= CROSS_ENTROPY_ULPS[dtype] * ulp).all()), float((error / ulp).max())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocabulary", [2, 67, 50257])
def test_the_gradient_is_no_worse_than_torchs_own(vocabulary: int, dtype: torch.dtype) -> None:
    logits, targets = case(13, vocabulary, 3.0, dtype)
    # Powers of two: scaling by them rounds nothing in any dtype.
    weights = 2.0 ** -torch.arange(13).remainder(3)
    exact = gradients(
        logits.double(), targets, weights.double(), lambda x, t: F.cross_entropy(x, t, reduction="none")
    )
    ours = gradients(logits, targets, weights, lambda x, t: cross_entropy(x, t).to(dtype))
    theirs = gradients(logits, targets, weights, lambda x, t: F.cross_entropy(x, t, reduction="none"))
    allowed = CROSS_ENTROPY_GRADIENT_RATIO * (theirs - exact).abs().max()
    assert (ours - exact).abs().max() <= allowed.clamp(min=torch.finfo(torch.float32).eps)


@pytest.mark.parametrize("elements", [1, 67, 67 * 3, 1 << 20])
def test_the_number_of_rows_in_a_chunk_changes_nothing(
    elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    logits, targets = case(7, 67, 2.0, torch.bfloat16)
    weights = torch.linspace(0.5, 1.5, 7)
    whole = cross_entropy(logits, targets)
    whole_gradient = gradients(logits, targets, weights, cross_entropy)
    monkeypatch.setitem(module._CHUNK_ELEMENTS, "cpu", elements)
    assert torch.equal(cross_entropy(logits, targets), whole)
    assert torch.equal(gradients(logits, targets, weights, cross_entropy), whole_gradient)


@settings(deadline=None, max_examples=30)
@given(
    rows=st.integers(0, 5), vocabulary=st.integers(1, 40), scale=st.floats(0, 30), seed=st.integers(0, 2**16)
)
def test_float64_logits_give_torchs_loss_and_gradient(
    rows: int, vocabulary: int, scale: float, seed: int
) -> None:
    logits, targets = case(rows, vocabulary, scale, torch.float64, seed)
    torch.testing.assert_close(cross_entropy(logits, targets), truth(logits, targets), rtol=1e-12, atol=1e-12)
    ones = torch.ones(rows)
    expected = gradients(logits, targets, ones, lambda x, t: F.cross_entropy(x, t, reduction="none"))
    torch.testing.assert_close(
        gradients(logits, targets, ones, cross_entropy), expected, rtol=1e-12, atol=1e-12
    )


def test_the_gradient_takes_the_logits_storage() -> None:
    leaf = torch.randn(3, 5).requires_grad_(True)
    logits = leaf * 1
    logits.retain_grad()
    cross_entropy(logits, torch.tensor([0, 4, 2])).sum().backward()
    assert torch.equal(logits.detach(), leaf.grad)


def test_whoever_else_needs_the_logits_for_its_backward_fails_loudly() -> None:
    logits = torch.randn(3, 5, requires_grad=True).exp()  # exp keeps its result for its backward
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        cross_entropy(logits, torch.tensor([0, 4, 2])).sum().backward()


def test_infinite_and_nan_logits_stay_in_their_row() -> None:
    logits, targets = case(4, 9, 1.0, torch.float32)
    expected = cross_entropy(logits, targets)
    logits[1, 3], logits[2, 0] = float("nan"), float("inf")
    loss = cross_entropy(logits, targets)
    assert not torch.isfinite(loss[1:3]).any()
    assert torch.equal(loss[[0, 3]], expected[[0, 3]])


def test_minus_infinity_is_a_token_that_cannot_be() -> None:
    logits = torch.tensor([[0.0, float("-inf"), 0.0]])
    assert cross_entropy(logits, torch.tensor([0])).item() == pytest.approx(torch.tensor(2.0).log().item())


def test_shapes_and_dtypes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="logits \\[N, V\\]"):
        cross_entropy(torch.zeros(2, 3), torch.zeros(3, dtype=torch.int64))
    with pytest.raises(ValueError, match="int64 targets"):
        cross_entropy(torch.zeros(2, 3), torch.zeros(2))
