from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import gradian.ops.cross_entropy as module
from gradian.errors import OpUnavailableError
from gradian.ops.cross_entropy import cross_entropy
from tests.tolerances import CROSS_ENTROPY_FLOOR, CROSS_ENTROPY_GRADIENT_RATIO, CROSS_ENTROPY_ULPS

# Triton's interpreter computes both sides of a where.
pytestmark = pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")

DTYPES = tuple(CROSS_ENTROPY_ULPS)
IMPLEMENTATIONS = ("reference", "triton")
# Tile +- 1 of the kernels, whose blocks end at 4096 columns.
VOCABULARIES = {"reference": (1, 2, 67, 1009, 50257), "triton": (1, 67, 129, 4097)}
WITH_VOCABULARY = [(impl, size) for impl in IMPLEMENTATIONS for size in VOCABULARIES[impl]]


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
@pytest.mark.parametrize(("impl", "vocabulary"), WITH_VOCABULARY)
def test_each_token_is_within_two_units_in_the_last_place(
    impl: str, vocabulary: int, dtype: torch.dtype
) -> None:
    cases = [case(3, vocabulary, scale, dtype) for scale in (0.1, 1.0, 5.0, 20.0)]
    # Far from zero, where one float32 log-sum-exp would lose two digits.
    offset = [case(2, vocabulary, 1.0, dtype) for _ in range(2)]
    cases += [
        ((x.float() + shift).to(dtype), t) for (x, t), shift in zip(offset, (200.0, -200.0), strict=True)
    ]
    logits, targets = (torch.cat(parts) for parts in zip(*cases, strict=True))
    # Some of the vocabulary cannot be.
    logits[::3, vocabulary // 2 + 1 :] = -float("inf")
    targets[::3] = targets[::3].clamp(max=vocabulary // 2)
    expected = truth(logits, targets)
    ulp = 2.0 ** (expected.clamp(min=CROSS_ENTROPY_FLOOR).log2().floor() - 23)
    error = (cross_entropy(logits, targets, impl).double() - expected).abs()
    assert bool((error <= CROSS_ENTROPY_ULPS[dtype] * ulp).all()), float((error / ulp).max())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("impl", "vocabulary"), WITH_VOCABULARY)
def test_the_gradient_is_no_worse_than_torchs_own(impl: str, vocabulary: int, dtype: torch.dtype) -> None:
    rows = 5 if impl == "triton" else 13
    logits, targets = case(rows, vocabulary, 3.0, dtype)
    # Powers of two: scaling by them rounds nothing in any dtype.
    weights = 2.0 ** -torch.arange(rows).remainder(3)
    exact = gradients(
        logits.double(), targets, weights.double(), lambda x, t: F.cross_entropy(x, t, reduction="none")
    )
    ours = gradients(logits, targets, weights, lambda x, t: cross_entropy(x, t, impl).to(dtype))
    theirs = gradients(logits, targets, weights, lambda x, t: F.cross_entropy(x, t, reduction="none"))
    allowed = CROSS_ENTROPY_GRADIENT_RATIO * (theirs - exact).abs().max()
    assert (ours - exact).abs().max() <= allowed.clamp(min=torch.finfo(torch.float32).eps)


@pytest.mark.parametrize("dtype", DTYPES)
def test_kernels_give_the_references_bits_where_every_sum_is_exact(dtype: torch.dtype) -> None:
    # 2^k equal logits: every exponential is one and every probability 2^-k; only the log rounds.
    logits = torch.full((4, 512), -float("inf"), dtype=dtype)
    for row, allowed in enumerate((1, 2, 64, 512)):
        logits[row, -allowed:] = row - 200
    targets = torch.full((4,), 511)
    weights = 2.0 ** torch.arange(4)
    found, expected = ({}, {})
    for impl, results in (("triton", found), ("reference", expected)):
        leaf = logits.clone().requires_grad_(True)
        results["loss"] = cross_entropy(leaf * 1, targets, impl)
        (results["loss"] * weights).sum().backward()
        results["grad"] = leaf.grad
    torch.testing.assert_close(found["loss"], expected["loss"], rtol=2.0**-23, atol=0)
    assert torch.equal(found["grad"], expected["grad"])


def test_rows_may_lie_apart_and_columns_may_be_strided() -> None:
    logits, targets = case(7, 67, 3.0, torch.float32)
    expected = gradients(logits, targets, torch.ones(7), lambda x, t: cross_entropy(x, t, "triton"))
    wide = torch.full((7, 80), float("nan"))
    layouts = {
        "apart": wide[:, 5:72].copy_(logits),
        "transposed": logits.T.contiguous().T,
        "expanded": logits[:1].expand(7, 67),
    }
    for name, layout in layouts.items():
        leaf = torch.zeros_like(logits, requires_grad=True)
        view = (layout + leaf) if name != "apart" else (wide + F.pad(leaf, (5, 8)))[:, 5:72]
        cross_entropy(view, targets, "triton").sum().backward()
        if name != "expanded":
            torch.testing.assert_close(leaf.grad.double(), expected, rtol=0, atol=1e-7)
    loss = cross_entropy(layouts["expanded"].requires_grad_(True), targets, "triton")
    loss.sum().backward()
    torch.testing.assert_close(loss, F.cross_entropy(layouts["expanded"], targets, reduction="none"))


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


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_the_gradient_takes_the_logits_storage(impl: str) -> None:
    leaf = torch.randn(3, 5).requires_grad_(True)
    logits = leaf * 1
    logits.retain_grad()
    cross_entropy(logits, torch.tensor([0, 4, 2]), impl).sum().backward()
    assert torch.equal(logits.detach(), leaf.grad)


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_whoever_else_needs_the_logits_for_its_backward_fails_loudly(impl: str) -> None:
    logits = torch.randn(3, 5, requires_grad=True).exp()  # exp keeps its result for its backward
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        cross_entropy(logits, torch.tensor([0, 4, 2]), impl).sum().backward()


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_infinite_and_nan_logits_stay_in_their_row(impl: str) -> None:
    logits, targets = case(4, 9, 1.0, torch.float32)
    expected = cross_entropy(logits, targets, impl)
    logits[1, 3], logits[2, 0] = float("nan"), float("inf")
    loss = cross_entropy(logits, targets, impl)
    assert not torch.isfinite(loss[1:3]).any()
    assert torch.equal(loss[[0, 3]], expected[[0, 3]])


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_minus_infinity_is_a_token_that_cannot_be(impl: str) -> None:
    logits = torch.tensor([[0.0, float("-inf"), 0.0]])
    assert cross_entropy(logits, torch.tensor([0]), impl).item() == pytest.approx(
        torch.tensor(2.0).log().item()
    )


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_a_second_backward_pass_raises(impl: str) -> None:
    loss = cross_entropy(torch.randn(3, 5, requires_grad=True) * 1, torch.tensor([0, 4, 2]), impl).sum()
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_kernels_leave_float64_to_the_reference_and_mark_a_target_that_is_no_token() -> None:
    with pytest.raises(OpUnavailableError, match="float32"):
        cross_entropy(torch.zeros(2, 3).double(), torch.zeros(2, dtype=torch.int64), "triton")
    loss = cross_entropy(torch.zeros(3, 5), torch.tensor([0, 5, -1]), "triton")
    assert torch.isnan(loss).tolist() == [False, True, True]
    assert cross_entropy(torch.zeros(0, 5), torch.zeros(0, dtype=torch.int64), "triton").shape == (0,)


def test_shapes_and_dtypes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="logits \\[N, V\\]"):
        cross_entropy(torch.zeros(2, 3), torch.zeros(3, dtype=torch.int64))
    with pytest.raises(ValueError, match="int64 targets"):
        cross_entropy(torch.zeros(2, 3), torch.zeros(2))
