"""Exact per-example gradients from one forward and one backward pass of the whole batch.

Forward hooks on the `lora_A` and `lora_B` linears keep the input X and put a tensor hook on the output. The
tensor hook receives the output's gradient G, multiplies at once (grad_b = sum_t G outer X) and lets X go.
No parameter requires a gradient, so autograd computes none for them and keeps nothing for them. The scaling
alpha / r comes after `lora_B` and so is in G already.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from gradian.errors import GradientError
from gradian.grads.loss import Reduction, TokenBatch, batch_losses, slot_in_owner
from gradian.grads.strategy import STRATEGIES, BatchGradients, as_blocks
from gradian.model.lora import LoraBlocks
from gradian.ops.per_example_grad import per_example_grad


def _is_expert(name: str) -> bool:
    return ".experts." in f".{name}."


class _Capture:
    """Gradients of one batch by module, filled in by the hooks."""

    def __init__(self, blocks: LoraBlocks, batch: TokenBatch, head: nn.Module | None) -> None:
        self.batch = batch
        self.grads: dict[nn.Module, Tensor] = {}
        self.called: set[nn.Module] = set()
        self.names: dict[nn.Module, str] = {
            module: pair.name for pair in blocks.pairs for module in (pair.a, pair.b)
        }
        # The head's own LoRA sees only the gathered rows, [1, N, h], owned by different examples.
        self.in_head = set(head.modules()) & set(self.names) if head is not None else set()

    @contextmanager
    def attached(self) -> Iterator[None]:
        handles = [module.register_forward_hook(self._forward) for module in self.names]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _forward(self, module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
        if not torch.is_grad_enabled():
            return
        self.called.add(module)
        inputs = args[0].detach()
        if not output.requires_grad:
            # The first adapted layer: nothing before it is differentiated, so its output is a leaf.
            output.requires_grad_(True)

        def backward(grad: Tensor) -> None:
            self._add(module, inputs, grad)

        output.register_hook(backward)  # type: ignore[no-untyped-call]

    def _add(self, module: nn.Module, inputs: Tensor, grad: Tensor) -> None:
        value = per_example_grad(self._by_example(module, inputs), self._by_example(module, grad.detach()))
        # A module that runs twice in one pass (shared layers) has the sum of both gradients.
        self.grads[module] = self.grads[module] + value if module in self.grads else value

    def _by_example(self, module: nn.Module, rows: Tensor) -> Tensor:
        """Return `rows` as [b, positions, features]."""
        n, (b, t) = self.batch.targets.shape[0], self.batch.input_ids.shape
        if module in self.in_head:
            owner = self.batch.owner.to(rows.device)
            slot, width = slot_in_owner(owner, b)
            table = rows.new_zeros(b, width, rows.shape[-1])
            table[owner, slot] = rows.reshape(n, rows.shape[-1])
            return table
        if rows.dim() == 3 and rows.shape[:2] == (b, t):
            return rows
        # Some models flatten the batch before a layer. Routed experts do too, but reorder the tokens.
        name = self.names[module]
        if rows.dim() == 2 and rows.shape[0] == b * t and not _is_expert(name):
            return rows.reshape(b, t, rows.shape[-1])
        raise GradientError(
            "the hooks strategy cannot tell which example a token of this layer belongs to",
            where=name,
            found=f"inputs of shape {tuple(rows.shape)} for a batch of {b} x {t} tokens",
            fix="set grads.strategy to loop, or leave the layer out with grads.module_filter",
        )

    def not_called(self) -> list[str]:
        """Layers whose LoRA never ran; a routed expert may rightly have had no token."""
        return [
            name for module, name in self.names.items() if module not in self.called and not _is_expert(name)
        ]

    def of(self, module: nn.Linear) -> Tensor:
        """The module's gradient [b, out, in]; zero when the loss does not depend on its output."""
        if module in self.grads:
            return self.grads[module]
        maths = torch.promote_types(module.weight.dtype, torch.float32)
        return torch.zeros(self.batch.n_rows, *module.weight.shape, dtype=maths, device=module.weight.device)


@STRATEGIES.register("hooks")
def hooks_gradients(
    model: Any, blocks: LoraBlocks, batch: TokenBatch, reduction: Reduction
) -> BatchGradients:
    """Capture per-example gradients in one pass.

    Raises:
        GradientError: an adapted layer's LoRA linears are not run as modules, or their tokens are regrouped.
    """
    capture = _Capture(blocks, batch, model.get_output_embeddings())
    with torch.enable_grad(), capture.attached():
        losses = batch_losses(model, batch, reduction)
        idle = capture.not_called()
        if idle:
            raise GradientError(
                "an adapted layer's LoRA did not run as a module in the forward pass",
                where=idle[0],
                found="LoRA computed by other code (fused kernels), a switched-off or a merged adapter",
                fix="switch the fused code off, or leave the layer out with grads.module_filter",
            )
        losses.sum().backward()  # type: ignore[no-untyped-call]
    pairs = [(capture.of(pair.a), capture.of(pair.b)) for pair in blocks.pairs]
    return BatchGradients(losses.detach(), as_blocks(pairs, blocks.granularity))
