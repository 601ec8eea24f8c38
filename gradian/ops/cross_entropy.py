"""Cross entropy per token, without an upcast copy of the logits.

For row x of the logits and target t, with m = max_v x_v:

    loss = (m - x_t) + log(1 + sum_{v != argmax} exp(x_v - m))
    d loss / d x_v = exp((x_v - m) - log sum) - [v = t]

Rows are taken a few at a time. Inside such a chunk everything is float32 (float64 for float64 logits);
outside it only the logits in their own dtype, one row maximum and one log-sum per row exist.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from gradian.ops._dispatch import Op

OP = Op[Any]("cross_entropy")

# Elements of one float32 chunk: within a core's cache on the CPU, enough to fill a GPU elsewhere.
_CHUNK_ELEMENTS = {"cpu": 1 << 19}
_CHUNK_ELEMENTS_ELSEWHERE = 1 << 25


def _row_chunks(logits: Tensor) -> Iterator[slice]:
    rows, vocabulary = logits.shape
    elements = _CHUNK_ELEMENTS.get(logits.device.type, _CHUNK_ELEMENTS_ELSEWHERE)
    step = max(1, elements // vocabulary)
    return (slice(start, min(start + step, rows)) for start in range(0, rows, step))


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor) -> Tensor:
        maths = torch.float64 if logits.dtype == torch.float64 else torch.float32
        rows = logits.shape[0]
        loss = logits.new_empty(rows, dtype=maths)
        peak = logits.new_empty(rows, dtype=maths)
        log_sum = logits.new_empty(rows, dtype=maths)
        for part in _row_chunks(logits):
            x = logits[part].to(maths)
            m, at = x.max(dim=1, keepdim=True)
            # Without the largest term, which is exactly 1, log1p keeps a tiny loss accurate.
            rest = (x - m).exp_().scatter_(1, at, 0.0).sum(dim=1)
            peak[part] = m.squeeze(1)
            log_sum[part] = rest.log1p_()
            loss[part] = (m - x.gather(1, targets[part, None])).squeeze(1) + log_sum[part]
        ctx.save_for_backward(logits, targets, peak, log_sum)
        return loss

    @staticmethod
    def backward(ctx: Any, *upstream: Any) -> tuple[Tensor, None]:
        logits, targets, peak, log_sum = ctx.saved_tensors
        (grad_loss,) = upstream
        # The gradient takes the logits' place. detach() shares the version counter, so anything else that
        # still needs the logits' values fails loudly instead of reading gradients.
        grad = logits.detach()
        for part in _row_chunks(grad):
            p = grad[part].to(peak.dtype)
            scale = grad_loss[part, None]
            p.sub_(peak[part, None]).sub_(log_sum[part, None]).exp_().mul_(scale)
            p.scatter_add_(1, targets[part, None], -scale)
            grad[part] = p
        return grad, None


@OP.implementation("reference")
def cross_entropy_reference(logits: Tensor, targets: Tensor) -> Tensor:
    """The definition in pure torch; see `cross_entropy`."""
    loss: Tensor = _CrossEntropy.apply(logits, targets)  # type: ignore[no-untyped-call]
    return loss


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
