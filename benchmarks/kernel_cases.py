"""The kernels on inputs of one shape: what to compare them with, the float64 truth, and how far it may be.

A way takes the inputs, which it may write over, and returns its outputs; None stands for one that it does not
compute alike. `triton` and `reference` are Gradian's own; baselines are what a user would run otherwise.
Bounds are those of the tests (`tests/tolerances.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from gradian.ops.cross_entropy import cross_entropy
from gradian.ops.linear_cross_entropy import linear_cross_entropy
from gradian.ops.per_example_grad import per_example_grads
from gradian.ops.projection import Kind, counter_hash, projection
from tests.tolerances import (
    CROSS_ENTROPY_FLOOR,
    CROSS_ENTROPY_GRADIENT_RATIO,
    CROSS_ENTROPY_ULPS,
    EPS,
    SUMS,
)

OURS, REFERENCE = "triton", "reference"

Way = Callable[..., "tuple[Tensor | None, ...]"]


@dataclass(frozen=True)
class Truth:
    """One output in float64, and the largest error allowed: per element, or one number for the error's norm."""

    name: str
    value: Tensor
    bound: Tensor

    def excess(self, output: Tensor) -> float:
        """Return the largest error in units of its bound; infinite where NaN or the shape does not fit."""
        if output.shape != self.value.shape:
            return float("inf")
        error = (output.double() - self.value).abs()
        if self.bound.dim() == 0:
            error = error.norm()
        ratio = torch.where(error == 0, 0.0, error / self.bound)
        return float(ratio.nan_to_num(nan=torch.inf, posinf=torch.inf).max()) if ratio.numel() else 0.0


@dataclass(frozen=True)
class Case:
    """One kernel on one set of inputs.

    Attributes:
        name: kernel, dtype and shape.
        op: Gradian's operation.
        inputs: what every way takes.
        ways: Gradian's own, by name; `triton` first.
        baselines: makes the others, by name; torch.compile and Liger are imported here.
        truths: given the inputs, what the outputs should be.
        least_bytes: that must move: every input read once a pass, and every output written once.
        least_flops: of matrix products.
        same_bits: the kernel's outputs are the reference's, bit for bit.
    """

    name: str
    op: str
    inputs: tuple[Tensor, ...]
    ways: Mapping[str, Way]
    baselines: Callable[[], Mapping[str, Way]]
    truths: Callable[[], tuple[Truth, ...]]
    least_bytes: int
    least_flops: int = 0
    same_bits: bool = False


@dataclass(frozen=True)
class Kernel:
    """How to make a kernel's cases.

    Attributes:
        make: from shape, dtype and device.
        dtypes: that it takes.
        shapes: as models have them.
        quick_shapes: small and awkward, for the interpreter.
    """

    make: Callable[[Any, torch.dtype, torch.device], Case]
    dtypes: tuple[torch.dtype, ...]
    shapes: tuple[Any, ...]
    quick_shapes: tuple[Any, ...]


def _generator(device: torch.device) -> torch.Generator:
    return torch.Generator(device).manual_seed(0)


def _named(op: str, dtype: torch.dtype, shape: str) -> str:
    return f"{op} {str(dtype).removeprefix('torch.')} {shape}"


def _bytes(*tensors: Tensor) -> int:
    return sum(each.nbytes for each in tensors)


def _own(way: Callable[[str], Way]) -> dict[str, Way]:
    return {impl: way(impl) for impl in (OURS, REFERENCE)}


# Cross entropy


def _losses(loss: Callable[..., Tensor]) -> Way:
    """Loss of the inputs and gradient of the first."""

    def way(first: Tensor, *others: Tensor) -> tuple[Tensor | None, ...]:
        leaf = first.detach().requires_grad_()
        value = loss(leaf, *others)
        value.sum().backward()  # type: ignore[no-untyped-call]
        return value.detach(), leaf.grad

    return way


def _upcast(logits: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(logits.float(), targets, reduction="none")


def _loss_bound(loss: Tensor, dtype: torch.dtype) -> Tensor:
    ulp = 2.0 ** (loss.clamp(min=CROSS_ENTROPY_FLOOR).log2().floor() - 23)
    return CROSS_ENTROPY_ULPS[dtype] * ulp


def cross_entropy_case(shape: tuple[int, int], dtype: torch.dtype, device: torch.device) -> Case:
    """Loss per token and the gradient of the logits."""
    rows, vocabulary = shape
    generator = _generator(device)
    logits = (3 * torch.randn(shape, generator=generator, device=device)).to(dtype)
    targets = torch.randint(vocabulary, (rows,), generator=generator, device=device)

    def truths() -> tuple[Truth, ...]:
        loss, gradient = _losses(lambda x, t: functional.cross_entropy(x, t, reduction="none"))(
            logits.double(), targets
        )
        _, theirs = _losses(lambda x, t: functional.cross_entropy(x, t, reduction="none"))(
            logits.clone(), targets
        )
        assert loss is not None
        assert gradient is not None
        assert theirs is not None
        worst = CROSS_ENTROPY_GRADIENT_RATIO * (theirs.double() - gradient).abs().max()
        worst = worst.clamp(min=torch.finfo(torch.float32).eps)
        return (
            Truth("loss", loss, _loss_bound(loss, dtype)),
            Truth("gradient", gradient, worst.expand_as(gradient)),
        )

    def baselines() -> Mapping[str, Way]:
        ways = {
            "torch eager": _losses(_upcast),
            "torch.compile": _losses(torch.compile(_upcast, dynamic=False)),
        }
        if find_spec("liger_kernel"):
            liger = import_module("liger_kernel.transformers").LigerCrossEntropyLoss(reduction="none")
            ways["Liger"] = _losses(liger)
        return ways

    ways = _own(lambda impl: _losses(lambda x, t: cross_entropy(x, t, impl=impl)))
    name = _named("cross_entropy", dtype, f"{rows} x {vocabulary}")
    # The logits twice, forward and backward, and their gradient.
    return Case(name, "cross_entropy", (logits, targets), ways, baselines, truths, 3 * _bytes(logits))


def linear_cross_entropy_case(shape: tuple[int, int, int], dtype: torch.dtype, device: torch.device) -> Case:
    """Loss per token and the gradient of the hidden states, through a frozen head."""
    rows, width, vocabulary = shape
    generator = _generator(device)
    hidden = torch.randn(rows, width, generator=generator, device=device).to(dtype)
    weight = (torch.randn(vocabulary, width, generator=generator, device=device) * (3 / width**0.5)).to(dtype)
    targets = torch.randint(vocabulary, (rows,), generator=generator, device=device)

    def logits(loss: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
        return lambda hidden, weight, targets: loss(functional.linear(hidden, weight), targets)

    def truths() -> tuple[Truth, ...]:
        plain = logits(lambda x, t: functional.cross_entropy(x, t, reduction="none"))
        h, w = hidden.double(), weight.double()
        loss, gradient = _losses(plain)(h, w, targets)
        assert loss is not None
        assert gradient is not None
        terms = functional.linear(h.abs(), w.abs()).amax(dim=1, keepdim=True)
        delta = _sum_bound("linear_cross_entropy", dtype, terms)
        of_loss = 2 * delta.squeeze(1) + _loss_bound(loss, dtype)
        if dtype == torch.float32:
            g = functional.linear(h.detach(), w).softmax(dim=1)
            g[torch.arange(rows, device=device), targets] -= 1
            bound = (g.abs_() * (16 * EPS + 2 * delta)) @ w.abs()
        else:
            # No further off than a head that runs as a module.
            module = logits(lambda x, t: cross_entropy(x, t, impl=REFERENCE))
            _, theirs = _losses(module)(hidden.clone(), weight, targets)
            assert theirs is not None
            bound = CROSS_ENTROPY_GRADIENT_RATIO * (theirs.double() - gradient).norm()
        return Truth("loss", loss, of_loss), Truth("gradient", gradient, bound)

    def baselines() -> Mapping[str, Way]:
        ways = {
            "torch eager": _losses(logits(_upcast)),
            "torch.compile": _losses(torch.compile(logits(_upcast), dynamic=False)),
        }
        if find_spec("liger_kernel"):
            module = import_module("liger_kernel.transformers").LigerFusedLinearCrossEntropyLoss
            fused = _losses(lambda h, w, t: module(reduction="sum")(w, h, t))
            # One loss for all tokens.
            ways["Liger"] = lambda *inputs: (None, fused(*inputs)[1])
        return ways

    ways = _own(lambda impl: _losses(lambda h, w, t: linear_cross_entropy(h, w, t, impl=impl)))
    return Case(
        _named("linear_cross_entropy", dtype, f"{rows} x {width} to {vocabulary}"),
        "linear_cross_entropy",
        (hidden, weight, targets),
        ways,
        baselines,
        truths,
        least_bytes=2 * _bytes(hidden, weight) + _bytes(hidden),
        least_flops=4 * rows * width * vocabulary,
    )


# Sums


def _sum_bound(op: str, dtype: torch.dtype, magnitudes: Tensor) -> Tensor:
    return SUMS[op, dtype] * EPS * magnitudes


# Of one decoder block: query, key, value, output, gate, up and down, as [in, out].
_BLOCK_8B = (
    *((4096, 4096), (4096, 1024), (4096, 1024), (4096, 4096)),
    *((4096, 14336), (4096, 14336), (14336, 4096)),
)
_STORED = torch.float16


def per_example_grad_case(
    shape: tuple[int, int, int, tuple[tuple[int, int], ...]], dtype: torch.dtype, device: torch.device
) -> Case:
    """Gradients of LoRA's A [r, in] and B [out, r] of every layer of a block, as an index stores them."""
    batch, time, rank, linear = shape
    generator = _generator(device)
    sides = [side for i, o in linear for side in ((i, rank), (rank, o))]
    inputs = tuple(
        torch.randn(batch, time, width, generator=generator, device=device).to(dtype)
        for side in sides
        for width in side
    )

    def pairs(inputs: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
        return list(zip(inputs[::2], inputs[1::2], strict=True))

    def truths() -> tuple[Truth, ...]:
        found = []
        for number, (x, g) in enumerate(pairs(inputs)):
            value = torch.bmm(g.double().transpose(1, 2), x.double())
            magnitudes = torch.bmm(g.double().abs().transpose(1, 2), x.double().abs())
            stored = value.abs() * torch.finfo(_STORED).eps / 2 + torch.finfo(_STORED).smallest_normal
            bound = _sum_bound("per_example_grad", dtype, magnitudes) + stored
            found.append(Truth(f"gradient {number}", value, bound))
        return tuple(found)

    def own(impl: str) -> Way:
        def way(*inputs: Tensor) -> tuple[Tensor | None, ...]:
            out = [x.new_empty(batch, g.shape[2], x.shape[2], dtype=_STORED) for x, g in pairs(inputs)]
            per_example_grads(pairs(inputs), out, impl=impl)
            return tuple(out)

        return way

    def eager(*inputs: Tensor) -> tuple[Tensor | None, ...]:
        return tuple(torch.einsum("bto,bti->boi", g.float(), x.float()).to(_STORED) for x, g in pairs(inputs))

    def baselines() -> Mapping[str, Way]:
        return {"torch eager": eager, "torch.compile": torch.compile(eager, dynamic=False)}

    name = _named("per_example_grad", dtype, f"b={batch} t={time} r={rank} {len(sides)} matrices")
    written = sum(batch * i * o * _STORED.itemsize for i, o in sides)
    moved = _bytes(*inputs) + written
    flops = sum(2 * batch * time * i * o for i, o in sides)
    return Case(name, "per_example_grad", inputs, _own(own), baselines, truths, moved, flops)


def projection_case(shape: tuple[Kind, int, int, int], dtype: torch.dtype, device: torch.device) -> Case:
    """Rows [b, d] projected to [b, k]."""
    kind, rows, size, dim = shape
    values = torch.randn(rows, size, generator=_generator(device), device=device, dtype=dtype)
    key = 0x5DEECE66D

    def truths() -> tuple[Truth, ...]:
        exact = values.double()
        value = projection(exact, dim, kind, key, impl=REFERENCE)
        if kind == "countsketch":
            # Signs applied twice cancel: sums of magnitudes.
            signs = 1 - 2 * (counter_hash(torch.arange(size, device=device), key) & 1)
            magnitudes = projection(exact.abs() * signs, dim, kind, key, impl=REFERENCE)
        else:
            magnitudes = (exact.abs().sum(dim=1, keepdim=True) / dim**0.5).expand_as(value)
        return (Truth("projected rows", value, _sum_bound("projection", dtype, magnitudes)),)

    ways = _own(lambda impl: lambda values: (projection(values, dim, kind, key, impl=impl),))

    def baselines() -> Mapping[str, Way]:
        return {"torch.compile": torch.compile(ways[REFERENCE], dynamic=False)}

    name = _named("projection", dtype, f"{kind} {rows} x {size} to {dim}")
    return Case(
        name, "projection", (values,), ways, baselines, truths, _bytes(values) + rows * dim * values.itemsize
    )


_FLOATS = (torch.bfloat16, torch.float16, torch.float32)
KERNELS = (
    Kernel(
        cross_entropy_case,
        _FLOATS,
        shapes=((2048, 32000), (2048, 128256)),
        quick_shapes=((5, 67), (3, 1031)),
    ),
    Kernel(
        linear_cross_entropy_case,
        _FLOATS,
        shapes=((2048, 2048, 128256), (2048, 4096, 32000)),
        quick_shapes=((5, 33, 129),),
    ),
    Kernel(
        per_example_grad_case,
        _FLOATS,
        shapes=((4, 1024, 16, _BLOCK_8B), (4, 1024, 64, _BLOCK_8B)),
        quick_shapes=((2, 17, 5, ((33, 65), (7, 16))),),
    ),
    Kernel(
        projection_case,
        (torch.float32,),
        shapes=(("countsketch", 8, 65536, 4096), ("rademacher", 8, 65536, 4096)),
        quick_shapes=(("countsketch", 3, 257, 31), ("rademacher", 3, 130, 65)),
    ),
)
