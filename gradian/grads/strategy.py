"""What a capture strategy is, and the registry of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from gradian.grads.loss import Reduction, TokenBatch
from gradian.model.lora import LoraBlocks
from gradian.registry import Registry


@dataclass(frozen=True, eq=False)
class BatchGradients:
    """What one batch gives.

    Attributes:
        losses: [b], detached, on the model's device.
        blocks: per block [b, d_l], float32 (float64 for a float64 model), on the model's device.
    """

    losses: Tensor
    blocks: list[Tensor]


Strategy = Callable[[Any, LoraBlocks, TokenBatch, Reduction], BatchGradients]

STRATEGIES: Registry[Strategy] = Registry("gradient strategy")


def as_blocks(pairs: list[tuple[Tensor, Tensor]], granularity: str) -> list[Tensor]:
    """Lay per-example gradients of A [b, r, in] and B [b, out, r] out as blocks [b, d_l]."""
    import torch

    blocks: list[Tensor] = []
    for a, b in pairs:
        parts = [a.flatten(1), b.flatten(1)]
        blocks.extend([torch.cat(parts, dim=1)] if granularity == "module" else parts)
    return blocks
