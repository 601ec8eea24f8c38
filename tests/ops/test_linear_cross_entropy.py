from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import gradian.ops.linear_cross_entropy as module
from gradian.errors import OpUnavailableError
from gradian.ops._dispatch import triton_kernel
from gradian.ops.cross_entropy import cross_entropy
from gradian.ops.linear_cross_entropy import linear_cross_entropy
from tests.tolerances import (
    CROSS_ENTROPY_FLOOR,
    CROSS_ENTROPY_GRADIENT_RATIO,
    CROSS_ENTROPY_ULPS,
    EPS,
    SUMS,
)

# Triton's interpreter computes both sides of a where, and the maximum of nothing but NaN.
pytestmark = [
    pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:All-NaN slice encountered:RuntimeWarning"),
]

DTYPES = tuple(CROSS_ENTROPY_ULPS)
IMPLEMENTATIONS = ("reference", "triton")


@dataclass(frozen=True)
class Head:
    """Inputs of the operation."""

    hidden: torch.Tensor
    weight: torch.Tensor
    targets: torch.Tensor
    bias: torch.Tensor | None = None
    softcap: float | None = None
    scale: float = 1.0

    def in_dtype(self, dtype: torch.dtype) -> Head:
        bias = None if self.bias is None else self.bias.to(dtype)
        return replace(self, hidden=self.hidden.to(dtype), weight=self.weight.to(dtype), bias=bias)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """What a model computes with its head as a module."""
        x = F.linear(hidden, self.weight, self.bias) * self.scale
        return x if self.softcap is None else self.softcap * torch.tanh(x / self.softcap)

    def fused(self, impl: str | None = None):
        """The operation, with everything given but the hidden states."""
        rest = (self.weight, self.targets, self.bias, self.softcap, self.scale, impl)
        return lambda hidden: linear_cross_entropy(hidden, *rest)


def head(rows: int, width: int, vocabulary: int, dtype: torch.dtype, capped: bool = False) -> Head:
    generator = torch.Generator().manual_seed(rows + vocabulary)
    hidden = torch.randn(rows, width, generator=generator)
    weight = torch.randn(vocabulary, width, generator=generator) * (4 / width**0.5)
    targets = torch.randint(0, vocabulary, (rows,), generator=generator)
    made = Head(hidden, weight, targets)
    if capped:
        bias = torch.randn(vocabulary, generator=generator)
        made = replace(made, bias=bias, softcap=3.0, scale=0.5)
    return made.in_dtype(dtype)


def loss_and_gradient(loss, hidden: torch.Tensor, weights: torch.Tensor):
    leaf = hidden.clone().requires_grad_(True)
    value = loss(leaf)
    (value * weights.to(value.dtype)).sum().backward()
    return value.detach().double(), leaf.grad.double()


def truth(given: Head, weights: torch.Tensor):
    exact = given.in_dtype(torch.float64)
    return loss_and_gradient(
        lambda h: F.cross_entropy(exact.logits(h), exact.targets, reduction="none"), exact.hidden, weights
    )


def logit_error(given: Head) -> torch.Tensor:
    """How far a float32 logit of each row may be off, [N, 1]."""
    exact = given.in_dtype(torch.float64)
    bias = None if exact.bias is None else exact.bias.abs().nan_to_num(posinf=0.0)
    terms = F.linear(exact.hidden.abs(), exact.weight.abs(), bias).amax(dim=1, keepdim=True) * exact.scale
    return SUMS["linear_cross_entropy", given.hidden.dtype] * EPS * (terms + (exact.softcap or 0.0))


def check(given: Head, impl: str) -> None:
    """Loss and gradient are as near to the float64 truth as tests/tolerances.py says."""
    dtype = given.hidden.dtype
    weights = torch.linspace(0.5, 1.5, len(given.targets))
    expected, expected_grad = truth(given, weights)
    loss, grad = loss_and_gradient(given.fused(impl), given.hidden, weights)
    delta = logit_error(given)
    ulp = 2.0 ** (expected.clamp(min=CROSS_ENTROPY_FLOOR).log2().floor() - 23)
    allowed = 2 * delta.squeeze(1) + CROSS_ENTROPY_ULPS[dtype] * ulp
    assert bool(((loss - expected).abs() <= allowed).all())
    if dtype == torch.float32:
        exact = given.in_dtype(torch.float64)
        x = exact.logits(exact.hidden)
        # Of g = p - [v = t], p and the 1 are rounded.
        terms = torch.softmax(x, dim=1)
        terms[torch.arange(len(x)), given.targets] += 1
        share = 2 * 8 * EPS + 2 * delta + (2 * delta / exact.softcap if exact.softcap else 0.0)
        bound = (terms * share) @ exact.weight.abs() * exact.scale * weights[:, None]
        assert bool(((grad - expected_grad).abs() <= bound).all())
    else:
        _, theirs = loss_and_gradient(
            lambda h: cross_entropy(given.logits(h), given.targets, "reference"), given.hidden, weights
        )
        allowed = CROSS_ENTROPY_GRADIENT_RATIO * (theirs - expected_grad).norm()
        assert (grad - expected_grad).norm() <= allowed


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("capped", [False, True], ids=["plain", "bias, scale and softcap"])
@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_loss_and_gradient_are_nearer_to_the_truth_than_those_of_a_head_run_as_a_module(
    impl: str, capped: bool, dtype: torch.dtype
) -> None:
    for rows, width, vocabulary in ((1, 1, 1), (5, 33, 129), (67, 64, 127)):
        check(head(rows, width, vocabulary, dtype, capped), impl)


@pytest.mark.parametrize(
    ("dtype", "rows", "vocabulary"), [(torch.float32, 37, 70), (torch.bfloat16, 130, 260)]
)
@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_the_vocabulary_may_come_in_any_parts(
    impl: str, dtype: torch.dtype, rows: int, vocabulary: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = head(rows, 48, vocabulary, dtype, capped=True)
    monkeypatch.setitem(module._PART_ELEMENTS, "cpu", 7 * 13)
    kernels = triton_kernel("linear_cross_entropy")
    # One program for all tiles of a row block, one tile of gradients at a time.
    monkeypatch.setattr(kernels, "PROGRAMS", 1)
    monkeypatch.setattr(kernels, "GRADIENT_ELEMENTS", 1)
    check(given, impl)


@pytest.mark.parametrize("dtype", DTYPES)
def test_kernels_give_the_references_bits_where_every_sum_is_exact(dtype: torch.dtype) -> None:
    # 2^k tokens with one logit: probabilities are 2^-k, and the gradient is a mean of integers less an integer.
    generator = torch.Generator().manual_seed(0)
    weight = torch.randint(-8, 9, (256, 48), generator=generator).float()
    weight[:, :32] = weight[0, :32]
    hidden = torch.zeros(3, 48)
    hidden[:, :32] = torch.randint(-4, 5, (3, 32), generator=generator).float()
    bias = torch.zeros(256)
    bias[100:228] = -float("inf")
    given = Head(hidden, weight, torch.tensor([0, 99, 255]), bias).in_dtype(dtype)
    weights = torch.tensor([0.5, 1.0, 2.0])
    loss, grad = loss_and_gradient(given.fused("triton"), given.hidden, weights)
    expected_loss, expected_grad = loss_and_gradient(given.fused("reference"), given.hidden, weights)
    torch.testing.assert_close(loss, expected_loss, rtol=2.0**-23, atol=0)
    assert torch.equal(grad, expected_grad)
    assert bool(grad[:, 32:].any())


def test_float64_hidden_states_give_autograds_loss_and_gradient() -> None:
    for capped in (False, True):
        given = head(9, 17, 53, torch.float64, capped)
        weights = torch.linspace(0.5, 1.5, 9)
        found = loss_and_gradient(given.fused(), given.hidden, weights)
        torch.testing.assert_close(found, truth(given, weights), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_masked_tokens_extreme_logits_and_bad_rows_stay_where_they_are(impl: str) -> None:
    given = head(5, 32, 150, torch.float32)
    bias = torch.zeros(150)
    # The whole first tile cannot be.
    bias[:128] = -float("inf")
    hidden = given.hidden.clone()
    hidden[0] *= 100
    masked = replace(given, hidden=hidden, bias=bias, targets=given.targets % 22 + 128)
    check(masked, impl)
    hidden[3, 5] = float("nan")
    loss = replace(masked, hidden=hidden).fused(impl)(hidden)
    assert torch.isnan(loss).tolist() == [False, False, False, True, False]


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_every_run_gives_the_same_bits_and_a_second_backward_pass_too(impl: str) -> None:
    given = head(5, 32, 150, torch.bfloat16, capped=True)
    leaf = given.hidden.clone().requires_grad_(True)
    loss = given.fused(impl)(leaf)
    first = torch.autograd.grad(loss.sum(), leaf, retain_graph=True)[0]
    assert torch.equal(first, torch.autograd.grad(loss.sum(), leaf)[0])
    assert torch.equal(loss, given.fused(impl)(leaf))


def test_the_reference_never_holds_all_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    class Largest(TorchDispatchMode):
        elements = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor):
                self.elements = max(self.elements, result.numel())
            return result

    monkeypatch.setitem(module._PART_ELEMENTS, "cpu", 1000)
    given = head(50, 8, 400, torch.bfloat16, capped=True)
    with Largest() as largest:
        loss_and_gradient(given.fused(), given.hidden, torch.ones(50))
    assert 1000 <= largest.elements <= 400 * 8


def test_a_target_that_is_no_token_is_an_error_or_nan() -> None:
    given = replace(head(3, 8, 20, torch.float32), targets=torch.tensor([0, 20, -1]))
    with pytest.raises(IndexError, match="vocabulary of 20"):
        given.fused("reference")(given.hidden)
    assert torch.isnan(given.fused("triton")(given.hidden)).tolist() == [False, True, True]


def test_no_rows_give_no_losses() -> None:
    given = head(0, 8, 20, torch.float32)
    for impl in IMPLEMENTATIONS:
        loss, grad = loss_and_gradient(given.fused(impl), given.hidden, torch.ones(0))
        assert (loss.shape, grad.shape) == ((0,), (0, 8))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weight": torch.zeros(20, 7)}, r"weight \[V, H\]"),
        ({"weight": torch.zeros(0, 8)}, r"weight \[V, H\]"),
        ({"targets": torch.zeros(2, dtype=torch.int64)}, r"targets \[N\]"),
        ({"targets": torch.zeros(3)}, "int64 targets"),
        ({"bias": torch.zeros(3)}, r"bias \[20\]"),
        ({"weight": torch.zeros(20, 8).half()}, "the head in torch.float32"),
        ({"weight": torch.zeros(20, 8, requires_grad=True)}, "freeze it"),
        ({"weight": torch.zeros(20, 8, device="meta")}, "one device"),
        ({"softcap": 0.0}, "above zero"),
        ({"softcap": float("nan")}, "above zero"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, object], message: str) -> None:
    given = replace(head(3, 8, 20, torch.float32), **change)
    with pytest.raises(ValueError, match=message):
        given.fused()(given.hidden)


def test_kernels_leave_float64_to_the_reference() -> None:
    given = head(3, 8, 20, torch.float64)
    with pytest.raises(OpUnavailableError, match="float32"):
        given.fused("triton")(given.hidden)
