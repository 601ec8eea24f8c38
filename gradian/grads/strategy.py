"""What a capture strategy is, and the registry of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from gradian.grads.loss import Reduction, TokenBatch
from gradian.model.lora import LoraBlocks
from gradian.ops.per_example_grad import RowFigures, finish, joined
from gradian.registry import Registry


@dataclass(frozen=True, eq=False)
class Epilogue:
    """What a strategy does to its gradients last: `(gradient / divisor).to(dtype)`.

    Done while a gradient is made, it spares a float32 copy of all of them.

    Attributes:
        dtype: of the blocks; None keeps float32 (float64 for a float64 model).
        divisor: float32 [b] on the model's device, or None for ones.
        squares: whether squared norms are wanted.
    """

    dtype: torch.dtype | None = None
    divisor: Tensor | None = None
    squares: bool = False


AS_CAPTURED = Epilogue()


@dataclass(frozen=True, eq=False)
class BatchGradients:
    """What one batch gives.

    Attributes:
        losses: [b], detached, on the model's device.
        blocks: per block [b, d_l], as the epilogue wants them, on the model's device.
        figures: per block and example, of the blocks before the cast.
    """

    losses: Tensor
    blocks: list[Tensor]
    figures: RowFigures


class Strategy(Protocol):
    """Takes the gradients of one batch with respect to `blocks` of `model`."""

    def __call__(
        self,
        model: Any,
        blocks: LoraBlocks,
        batch: TokenBatch,
        reduction: Reduction,
        epilogue: Epilogue = AS_CAPTURED,
    ) -> BatchGradients:
        """Return what the batch gives."""
        ...


STRATEGIES: Registry[Strategy] = Registry("gradient strategy")


def as_blocks(pairs: list[tuple[Tensor, Tensor]], granularity: str) -> list[Tensor]:
    """Lay per-example gradients of A [b, r, in] and B [b, out, r] out as blocks [b, d_l]."""
    blocks: list[Tensor] = []
    for a, b in pairs:
        parts = [a.flatten(1), b.flatten(1)]
        blocks.extend([torch.cat(parts, dim=1)] if granularity == "module" else parts)
    return blocks


def finished(losses: Tensor, blocks: list[Tensor], epilogue: Epilogue) -> BatchGradients:
    """Apply the epilogue to whole blocks, for strategies that have them only in the end."""
    out = [
        block
        if epilogue.divisor is None and epilogue.dtype in (None, block.dtype)
        else torch.empty_like(block, dtype=epilogue.dtype)
        for block in blocks
    ]
    figures = [
        finish(block, target, epilogue.divisor, epilogue.squares)
        for block, target in zip(blocks, out, strict=True)
    ]
    return BatchGradients(losses, out, joined(figures))
