"""Cross entropy straight from hidden states and a frozen output head, without the logits [N, V].

With z = scale (h W^T + bias) and x = softcap tanh(z / softcap), or x = z, and m = max_v x_v:

    loss = (m - x_t) + log(1 + sum_{v != argmax} exp(x_v - m))
    d loss / d h = scale sum_v g_v W_v,  g_v = (softmax(x)_v - [v = t]) (1 - (x_v / softcap)^2)

The vocabulary is taken a part at a time, and the parts' maxima and sums are merged in their order (Milakov and
Gimelshein, "Online normalizer calculation for softmax", 2018). The backward pass makes each part's logits again.
Logits are float32 (float64 for float64 hidden states), where a head that runs as a module rounds them to its
own dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from gradian.ops._dispatch import Op, triton_kernel, triton_obstacle

OP = Op[Any]("linear_cross_entropy")

# Logits of one part of the vocabulary.
_PART_ELEMENTS = {"cpu": 1 << 22}
_PART_ELEMENTS_ELSEWHERE = 1 << 26


@dataclass(frozen=True, eq=False)
class _Head:
    """What turns hidden states into logits.

    Attributes:
        weight: [V, H].
        bias: [V] or None.
        scale: factor of the linear map's output.
        softcap: bound of the scaled logits, or None.
    """

    weight: Tensor
    bias: Tensor | None
    scale: float
    softcap: float | None


def _parts(hidden: Tensor, head: _Head) -> Iterator[slice]:
    vocabulary = head.weight.shape[0]
    elements = _PART_ELEMENTS.get(hidden.device.type, _PART_ELEMENTS_ELSEWHERE)
    step = max(1, elements // max(1, hidden.shape[0]))
    return (slice(start, min(start + step, vocabulary)) for start in range(0, vocabulary, step))


def _part_logits(hidden: Tensor, head: _Head, part: slice) -> Tensor:
    """Return the logits [N, part] in the dtype of `hidden`."""
    bias = None if head.bias is None else head.bias[part].to(hidden.dtype)
    x = functional.linear(hidden, head.weight[part].to(hidden.dtype), bias).mul_(head.scale)
    return x if head.softcap is None else x.div_(head.softcap).tanh_().mul_(head.softcap)


def _maths(hidden: Tensor) -> Tensor:
    return hidden.to(torch.float64 if hidden.dtype == torch.float64 else torch.float32)


def _forward(hidden: Tensor, head: _Head, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return loss, row maximum and log-sum, each [N]."""
    h = _maths(hidden)
    if targets.numel() and not bool(((targets >= 0) & (targets < head.weight.shape[0])).all()):
        raise IndexError(f"a target is outside of the vocabulary of {head.weight.shape[0]} tokens")
    peak = h.new_full((h.shape[0],), -torch.inf)
    # The sum without the maximum's own term: -1 is the sum of no terms at all.
    rest = torch.full_like(peak, -1.0)
    target_logit = torch.zeros_like(peak)
    for part in _parts(hidden, head):
        x = _part_logits(h, head, part)
        inside = (targets >= part.start) & (targets < part.stop)
        at_target = x.gather(1, (targets - part.start).clamp(0, x.shape[1] - 1)[:, None]).squeeze(1)
        target_logit = torch.where(inside, at_target, target_logit)
        m, at = x.max(dim=1, keepdim=True)
        part_rest = x.sub_(m).exp_().scatter_(1, at, 0.0).sum(dim=1)
        m = m.squeeze(1)
        # Where no token of the part can be, at minus infinity, there are no distances.
        part_rest = torch.where(m == -torch.inf, 0.0, part_rest)
        higher, lower = torch.maximum(peak, m), torch.minimum(peak, m)
        gap = torch.where(higher == lower, 0.0, lower - higher)
        first = peak >= m
        rest = torch.where(first, rest, part_rest) + (1.0 + torch.where(first, part_rest, rest)) * gap.exp()
        peak = higher
    log_sum = rest.log1p_()
    return (peak - target_logit) + log_sum, peak, log_sum


def _backward(hidden: Tensor, head: _Head, targets: Tensor, peak: Tensor, log_sum: Tensor) -> Tensor:
    """Return sum_v g_v W_v [N, H]."""
    h = _maths(hidden)
    total = torch.zeros_like(h)
    for part in _parts(hidden, head):
        x = _part_logits(h, head, part)
        slope = None if head.softcap is None else 1.0 - (x / head.softcap).square_()
        g = x.sub_(peak[:, None]).sub_(log_sum[:, None]).exp_()
        inside = (targets >= part.start) & (targets < part.stop)
        at = (targets - part.start).clamp(0, g.shape[1] - 1)[:, None]
        g.scatter_add_(1, at, -inside.to(g.dtype)[:, None])
        if slope is not None:
            g.mul_(slope)
        total.addmm_(g, head.weight[part].to(h.dtype))
    return total


@dataclass(frozen=True)
class _Passes:
    """The two passes of one implementation, with the signatures of `_forward` and `_backward`."""

    forward: Callable[[Tensor, _Head, Tensor], tuple[Tensor, Tensor, Tensor]]
    backward: Callable[[Tensor, _Head, Tensor, Tensor, Tensor], Tensor]


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, head: _Head, targets: Tensor, passes: _Passes) -> Tensor:
        loss, peak, log_sum = passes.forward(hidden, head, targets)
        ctx.head, ctx.passes = head, passes
        # The weight too, so that one who overwrites it before the backward pass is told.
        ctx.save_for_backward(hidden, targets, peak, log_sum, head.weight)
        return loss

    @staticmethod
    def backward(ctx: Any, *upstream: Any) -> tuple[Tensor, None, None, None]:
        hidden, targets, peak, log_sum, _ = ctx.saved_tensors
        grad = ctx.passes.backward(hidden, ctx.head, targets, peak, log_sum)
        # A row's upstream gradient is a factor of its whole gradient.
        grad.mul_((upstream[0] * ctx.head.scale)[:, None])
        return grad.to(hidden.dtype), None, None, None


def _apply(hidden: Tensor, head: _Head, targets: Tensor, passes: _Passes) -> Tensor:
    loss: Tensor = _LinearCrossEntropy.apply(hidden, head, targets, passes)  # type: ignore[no-untyped-call]
    return loss


@OP.implementation("reference")
def linear_cross_entropy_reference(hidden: Tensor, head: _Head, targets: Tensor) -> Tensor:
    """The definition in pure torch; see `linear_cross_entropy`."""
    return _apply(hidden, head, targets, _Passes(_forward, _backward))


def _triton_obstacle(device: torch.device, dtype: torch.dtype) -> str | None:
    if dtype == torch.float64:
        return "its kernels compute in float32"
    reason = triton_obstacle(device)
    if reason is None and device.type == "cuda" and dtype == torch.bfloat16 and torch.version.hip is None:
        major, minor = torch.cuda.get_device_capability(device)
        if major < 8:
            return f"tensor cores multiply bfloat16 from sm_80 on, this is sm_{major}{minor}"
    return reason


@OP.implementation("triton", _triton_obstacle)
def linear_cross_entropy_triton(hidden: Tensor, head: _Head, targets: Tensor) -> Tensor:
    """Tiles of logits, see `gradian.kernels.linear_cross_entropy`; a target outside [0, V) gives NaN."""
    kernels = triton_kernel("linear_cross_entropy")

    def forward(hidden: Tensor, head: _Head, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        result: tuple[Tensor, Tensor, Tensor] = kernels.forward(
            hidden, head.weight, head.bias, targets, head.scale, head.softcap
        )
        return result

    def backward(hidden: Tensor, head: _Head, targets: Tensor, peak: Tensor, log_sum: Tensor) -> Tensor:
        result: Tensor = kernels.backward(
            hidden, head.weight, head.bias, targets, head.scale, head.softcap, peak, log_sum
        )
        return result

    adjacent = _Head(
        head.weight if head.weight.stride(1) == 1 else head.weight.contiguous(),
        None if head.bias is None else head.bias.contiguous(),
        head.scale,
        head.softcap,
    )
    return _apply(hidden.contiguous(), adjacent, targets.contiguous(), _Passes(forward, backward))


def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    bias: Tensor | None = None,
    softcap: float | None = None,
    scale: float = 1.0,
    impl: str | None = None,
) -> Tensor:
    """Return each row's cross entropy in nats; differentiable with respect to the hidden states alone.

    Args:
        hidden: [N, H], float64, float32, float16 or bfloat16.
        weight: the frozen head's [V, H], of the dtype and device of `hidden`.
        targets: int64 [N], each in [0, V): else the reference raises IndexError and kernels give NaN.
        bias: [V] of the dtype of `hidden`, or None.
        softcap: scaled logits x become softcap tanh(x / softcap), as in Gemma 2; None leaves them.
        scale: factor of the logits, before the softcap.
        impl: implementation to use; None leaves the choice to `gradian.ops._dispatch`.

    Returns:
        [N], float32 (float64 for float64 hidden states).

    Raises:
        ValueError: shapes, dtypes or settings do not fit, or the head asks for a gradient.
        OpUnavailableError: `impl` cannot run here.
    """
    shapes = tuple(hidden.shape), tuple(weight.shape), tuple(targets.shape)
    if hidden.dim() != 2 or weight.dim() != 2 or hidden.shape[1] != weight.shape[1]:
        raise ValueError(f"want hidden [N, H], weight [V, H] and targets [N], got {shapes}")
    if targets.shape != hidden.shape[:1] or not weight.shape[0]:
        raise ValueError(f"want hidden [N, H], weight [V, H] and targets [N], got {shapes}")
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(f"want bias [{weight.shape[0]}], got {tuple(bias.shape)}")
    parameters = [weight] if bias is None else [weight, bias]
    if not hidden.is_floating_point() or targets.dtype != torch.int64:
        raise ValueError(
            f"want floating hidden states and int64 targets, got {hidden.dtype}, {targets.dtype}"
        )
    if any(each.dtype != hidden.dtype for each in parameters):
        raise ValueError(f"want the head in {hidden.dtype}, got {[each.dtype for each in parameters]}")
    if len({each.device for each in (hidden, targets, *parameters)}) > 1:
        raise ValueError("want hidden states, head and targets on one device")
    if torch.is_grad_enabled() and any(each.requires_grad for each in parameters):
        raise ValueError("the head asks for a gradient, and none is computed: freeze it")
    if not 0.0 < (1.0 if softcap is None else softcap) < float("inf"):
        raise ValueError(f"want a softcap above zero, got {softcap}")
    head = _Head(weight.detach(), None if bias is None else bias.detach(), scale, softcap)
    loss: Tensor = OP.choose(hidden, impl)(hidden, head, targets)
    return loss
