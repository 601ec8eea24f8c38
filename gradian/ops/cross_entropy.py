"""Cross entropy per token, without an upcast copy of the logits.

For row x of the logits and target t, with m = max_v x_v:

    loss = (m - x_t) + log(1 + sum_{v != argmax} exp(x_v - m))
    d loss / d x_v = exp((x_v - m) - log sum) - [v = t]

The reference takes a few rows at a time. Inside such a chunk everything is float32 (float64 for float64
logits); outside it only the logits in their own dtype, one row maximum and one log-sum per row exist.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gradian.ops._dispatch import Op, triton_kernel, triton_obstacle

OP = Op[Any]("cross_entropy")

# Elements of one float32 chunk: within a core's cache on the CPU, enough to fill a GPU elsewhere.
_CHUNK_ELEMENTS = {"cpu": 1 << 19}
_CHUNK_ELEMENTS_ELSEWHERE = 1 << 25


def _row_chunks(logits: Tensor) -> Iterator[slice]:
    rows, vocabulary = logits.shape
    elements = _CHUNK_ELEMENTS.get(logits.device.type, _CHUNK_ELEMENTS_ELSEWHERE)
    step = max(1, elements // vocabulary)
    return (slice(start, min(start + step, rows)) for start in range(0, rows, step))


def _forward(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return loss, row maximum and log-sum, each [N]."""
    maths = torch.float64 if logits.dtype == torch.float64 else torch.float32
    loss, peak, log_sum = logits.new_empty(3, logits.shape[0], dtype=maths)
    for part in _row_chunks(logits):
        x = logits[part].to(maths)
        m, at = x.max(dim=1, keepdim=True)
        # Without the largest term, which is exactly 1, log1p keeps a tiny loss accurate.
        rest = (x - m).exp_().scatter_(1, at, 0.0).sum(dim=1)
        peak[part] = m.squeeze(1)
        log_sum[part] = rest.log1p_()
        loss[part] = (m - x.gather(1, targets[part, None])).squeeze(1) + log_sum[part]
    return loss, peak, log_sum


def _backward(logits: Tensor, targets: Tensor, peak: Tensor, log_sum: Tensor, upstream: Tensor) -> None:
    """Overwrite the logits with their gradient."""
    for part in _row_chunks(logits):
        p = logits[part].to(peak.dtype)
        scale = upstream[part, None]
        p.sub_(peak[part, None]).sub_(log_sum[part, None]).exp_().mul_(scale)
        p.scatter_add_(1, targets[part, None], -scale)
        logits[part] = p


@dataclass(frozen=True)
class _Passes:
    """The two passes of one implementation, with the signatures of `_forward` and `_backward`."""

    forward: Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]
    backward: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], None]


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, passes: _Passes) -> Tensor:
        loss, peak, log_sum = passes.forward(logits, targets)
        ctx.passes = passes
        ctx.save_for_backward(logits, targets, peak, log_sum)
        return loss

    @staticmethod
    def backward(ctx: Any, *upstream: Any) -> tuple[Tensor, None, None]:
        logits, targets, peak, log_sum = ctx.saved_tensors
        # The gradient takes the logits' place. detach() shares the version counter, so anything else that
        # still needs the logits' values fails loudly instead of reading gradients.
        grad = logits.detach()
        ctx.passes.backward(grad, targets, peak, log_sum, upstream[0].contiguous())
        # A kernel writes behind torch's back.
        torch.autograd.graph.increment_version(grad)
        return grad, None, None


def _apply(logits: Tensor, targets: Tensor, passes: _Passes) -> Tensor:
    loss: Tensor = _CrossEntropy.apply(logits, targets, passes)  # type: ignore[no-untyped-call]
    return loss


@OP.implementation("reference")
def cross_entropy_reference(logits: Tensor, targets: Tensor) -> Tensor:
    """The definition in pure torch; see `cross_entropy`."""
    return _apply(logits, targets, _Passes(_forward, _backward))


def _triton_obstacle(device: torch.device, dtype: torch.dtype) -> str | None:
    if dtype == torch.float64:
        return "its kernels compute in float32"
    return triton_obstacle(device)


@OP.implementation("triton", _triton_obstacle)
def cross_entropy_triton(logits: Tensor, targets: Tensor) -> Tensor:
    """One kernel a pass, see `gradian.kernels.cross_entropy`; a target outside [0, V) gives NaN."""
    kernels = triton_kernel("cross_entropy")
    # Kernels write to rows of adjacent elements that share no storage; any other layout gets its copy.
    if logits.stride(1) != 1 or logits.stride(0) < logits.shape[1]:
        logits = logits.contiguous()
    return _apply(logits, targets.contiguous(), _Passes(kernels.forward, kernels.backward))


def cross_entropy(logits: Tensor, targets: Tensor, impl: str | None = None) -> Tensor:
    """Return each row's cross entropy in nats.

    The backward pass writes the gradient into the storage of `logits`: their values are gone after it, and
    a second backward pass raises.

    Args:
        logits: [N, V], float64, float32, float16 or bfloat16.
        targets: int64 [N], each in [0, V).
        impl: implementation to use; None leaves the choice to `gradian.ops._dispatch`.

    Returns:
        [N], float32 (float64 for float64 logits).

    Raises:
        ValueError: the shapes or dtypes do not fit.
        OpUnavailableError: `impl` cannot run here.
    """
    if logits.dim() != 2 or targets.shape != logits.shape[:1]:
        raise ValueError(
            f"want logits [N, V] and targets [N], got {tuple(logits.shape)}, {tuple(targets.shape)}"
        )
    if not logits.is_floating_point() or targets.dtype != torch.int64:
        raise ValueError(f"want floating logits and int64 targets, got {logits.dtype}, {targets.dtype}")
    loss: Tensor = OP.choose(logits, impl)(logits, targets)
    return loss
