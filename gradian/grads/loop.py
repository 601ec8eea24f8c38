"""The oracle: one example at a time, gradients by autograd on the parameters themselves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from gradian.grads.loss import Reduction, TokenBatch, batch_losses
from gradian.grads.strategy import AS_CAPTURED, STRATEGIES, BatchGradients, Epilogue, as_blocks, finished
from gradian.model.lora import LoraBlocks


@contextmanager
def _requiring_grad(weights: list[Tensor]) -> Iterator[None]:
    try:
        for weight in weights:
            weight.requires_grad_(True)
        yield
    finally:
        for weight in weights:
            weight.requires_grad_(False)


def single_rows(batch: TokenBatch) -> Iterator[TokenBatch]:
    """Split a batch into batches of one row."""
    for row in range(batch.n_rows):
        part = slice(row, row + 1)
        mine = batch.owner == row
        yield TokenBatch(
            input_ids=batch.input_ids[part],
            attention_mask=batch.attention_mask[part],
            position_ids=batch.position_ids[part],
            predicting=batch.predicting[part],
            targets=batch.targets[mine],
            owner=torch.zeros_like(batch.owner[mine]),
        )


@STRATEGIES.register("loop")
def loop_gradients(
    model: Any,
    blocks: LoraBlocks,
    batch: TokenBatch,
    reduction: Reduction,
    epilogue: Epilogue = AS_CAPTURED,
) -> BatchGradients:
    """Capture per-example gradients with one forward and backward pass an example."""
    weights = [weight for pair in blocks.pairs for weight in (pair.a.weight, pair.b.weight)]
    losses: list[Tensor] = []
    rows: list[list[Tensor]] = []
    with _requiring_grad(weights):
        for single in single_rows(batch):
            loss = batch_losses(model, single, reduction).squeeze(0)
            grads = torch.autograd.grad(loss, weights, allow_unused=True, materialize_grads=True)
            maths = torch.promote_types(loss.dtype, torch.float32)
            losses.append(loss.detach())
            # torch 2.4 materialises missing gradients as zeros that themselves require one.
            rows.append([grad.detach().to(maths) for grad in grads])
    stacked = [torch.stack(parts) for parts in zip(*rows, strict=True)]
    pairs = list(zip(stacked[::2], stacked[1::2], strict=True))
    return finished(torch.stack(losses), as_blocks(pairs, blocks.granularity), epilogue)
