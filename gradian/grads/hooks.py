"""Exact per-example gradients from one forward and one backward pass of the whole batch.

Forward hooks on the `lora_A` and `lora_B` linears keep the input X and put a tensor hook on the output. The
tensor hook receives the output's gradient G, multiplies (grad_b = sum_t G outer X) and lets X go: at once, or
where many products at once are faster when the waiting X and G have grown to a limit. No parameter requires a gradient, so autograd computes none for them and keeps nothing for them. The scaling
alpha / r comes after `lora_B` and so is in G already.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from gradian.errors import GradientError
from gradian.grads.loss import Reduction, TokenBatch, batch_losses, slot_in_owner
from gradian.grads.rows import BlockRows
from gradian.grads.strategy import AS_CAPTURED, STRATEGIES, BatchGradients, Epilogue
from gradian.model.lora import LoraBlocks
from gradian.ops.per_example_grad import groups, per_example_grad

# Small layers wait for each other, so that launches are few; a layer of a large model is a launch by itself.
_MOST_WAITING_BYTES = 64 << 20


def _is_expert(name: str) -> bool:
    return ".experts." in f".{name}."


class _Capture:
    """Gradients of one batch by module, filled in by the hooks."""

    def __init__(
        self, blocks: LoraBlocks, batch: TokenBatch, head: nn.Module | None, epilogue: Epilogue
    ) -> None:
        self.batch = batch
        self.rows = BlockRows(blocks, batch.n_rows, epilogue)
        self.waiting: list[tuple[nn.Linear, Tensor, Tensor]] = []
        self.waiting_bytes = 0
        self.calls: Counter[nn.Linear] = Counter()
        # Of linears that run more than once in a pass (shared layers): the sums so far.
        self.sums: dict[nn.Linear, Tensor | None] = {}
        self.names: dict[nn.Linear, str] = {
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

    def _forward(self, module: nn.Linear, args: tuple[Any, ...], output: Tensor) -> None:
        if not torch.is_grad_enabled():
            return
        self.calls[module] += 1
        inputs = args[0].detach()
        if not output.requires_grad:
            # The first adapted layer: nothing before it is differentiated, so its output is a leaf.
            output.requires_grad_(True)

        def backward(grad: Tensor) -> None:
            self._add(module, inputs, grad)

        output.register_hook(backward)  # type: ignore[no-untyped-call]

    def _add(self, module: nn.Linear, inputs: Tensor, grad: Tensor) -> None:
        x, g = self._by_example(module, inputs), self._by_example(module, grad.detach())
        if module in self.sums:
            value, before = per_example_grad(x, g), self.sums[module]
            self.sums[module] = value if before is None else before + value
        elif groups(x):
            self.waiting.append((module, x, g))
            self.waiting_bytes += x.numel() * x.element_size() + g.numel() * g.element_size()
            if self.waiting_bytes >= _MOST_WAITING_BYTES:
                self._multiply()
        else:
            self.rows.write([module], [(x, g)])

    def _multiply(self) -> None:
        if self.waiting:
            self.rows.write([module for module, _, _ in self.waiting], [(x, g) for _, x, g in self.waiting])
        self.waiting.clear()
        self.waiting_bytes = 0

    def _by_example(self, module: nn.Linear, rows: Tensor) -> Tensor:
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

    def forward_done(self) -> list[str]:
        """Return layers whose LoRA never ran; a routed expert may rightly have had no token.

        From here on a call is a checkpoint's, which repeats one.
        """
        self.sums = {module: None for module, count in self.calls.items() if count > 1}
        return [
            name for module, name in self.names.items() if not self.calls[module] and not _is_expert(name)
        ]

    def finished(self, losses: Tensor) -> BatchGradients:
        """What the hooks gathered."""
        self._multiply()
        for module, total in self.sums.items():
            if total is not None:
                self.rows.write_grads(module, total)
        return self.rows.finished(losses)


@STRATEGIES.register("hooks")
def hooks_gradients(
    model: Any,
    blocks: LoraBlocks,
    batch: TokenBatch,
    reduction: Reduction,
    epilogue: Epilogue = AS_CAPTURED,
) -> BatchGradients:
    """Capture per-example gradients in one pass.

    Raises:
        GradientError: an adapted layer's LoRA linears are not run as modules, or their tokens are regrouped.
    """
    capture = _Capture(blocks, batch, model.get_output_embeddings(), epilogue)
    with torch.enable_grad(), capture.attached():
        losses = batch_losses(model, batch, reduction)
        idle = capture.forward_done()
        if idle:
            raise GradientError(
                "an adapted layer's LoRA did not run as a module in the forward pass",
                where=idle[0],
                found="LoRA computed by other code (fused kernels), a switched-off or a merged adapter",
                fix="switch the fused code off, or leave the layer out with grads.module_filter",
            )
        losses.sum().backward()  # type: ignore[no-untyped-call]
    return capture.finished(losses.detach())
