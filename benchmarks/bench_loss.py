"""The loss of a batch, forward and backward: three ways to get from hidden states to per-example losses.

    python benchmarks/bench_loss.py --json loss.json

- ours: `gradian.grads.loss.batch_losses`, as gradient capture calls it. Supervised hidden states alone reach
  the output head, and the op `cross_entropy` works on a few rows of logits at a time.
- gather then upcast: supervised hidden states alone reach the head, then `.float()` and torch's cross entropy.
- full logits: logits of every position, then `.float()` and torch's cross entropy, with labels that are
  shifted instead of the logits (as transformers does, which spares a copy).

The body is small, so that the loss decides; it is differentiated, as capture does. Losses of all examples and
gradients of the hidden states are compared before anything is measured: a difference ends with exit code 1.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from side_by_side import Goal, Row, arguments, default_device, machine, measure, relative_error, report
from torch import Tensor
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM

from gradian.data.collate import pad_batch
from gradian.grads.loss import TokenBatch, batch_losses
from gradian.types import EncodedExample

CASE = "supervised 20% vocab 128k"
GOAL = Goal(f"{CASE}, against full logits", "peak", 0.2)
# Rounding of one float32 or bfloat16 head product, summed over a hidden state's gradient.
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


@dataclass(frozen=True)
class Size:
    """Rows and tokens of the batch, and the model around the loss."""

    rows: int = 8
    tokens: int = 512
    vocabulary: int = 131072
    hidden: int = 256
    layers: int = 2


QUICK = Size(rows=2, tokens=20, vocabulary=97, hidden=32, layers=1)


def small_model(size: Size, device: torch.device, dtype: torch.dtype) -> Any:
    """Return a frozen random Llama whose embeddings ask for a gradient."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=size.vocabulary,
        hidden_size=size.hidden,
        intermediate_size=4 * size.hidden,
        num_hidden_layers=size.layers,
        num_attention_heads=4,
        max_position_embeddings=size.tokens,
        use_cache=False,
    )
    model = LlamaForCausalLM(config).to(device, dtype).eval()
    model.requires_grad_(False)
    model.enable_input_require_grads()
    return model


def random_batch(size: Size, device: torch.device) -> TokenBatch:
    """Return rows of full length whose last fifth is supervised."""
    generator = np.random.default_rng(0)
    supervised = np.arange(size.tokens) >= size.tokens - size.tokens // 5
    rows = [
        EncodedExample(f"row-{i}", i, generator.integers(0, size.vocabulary, size.tokens), supervised)
        for i in range(size.rows)
    ]
    return TokenBatch.from_padded(pad_batch(rows, pad_id=0), device)


def gathered_losses(model: Any, batch: TokenBatch) -> Tensor:
    """Gather the supervised hidden states, make their logits, upcast them all."""
    hidden = model.model(input_ids=batch.input_ids, attention_mask=batch.attention_mask).last_hidden_state
    logits = model.lm_head(hidden[batch.predicting]).float()
    token = functional.cross_entropy(logits, batch.targets, reduction="none")
    total = token.new_zeros(batch.n_rows).index_add(0, batch.owner, token)
    return total / torch.bincount(batch.owner, minlength=batch.n_rows)


def full_losses(model: Any, batch: TokenBatch) -> Tensor:
    """Make the logits of every position, upcast them all."""
    logits = model(input_ids=batch.input_ids, attention_mask=batch.attention_mask).logits.float()
    labels = torch.full_like(batch.input_ids, -100)
    labels[batch.predicting] = batch.targets
    token = functional.cross_entropy(
        logits.reshape(-1, logits.shape[-1]), labels.reshape(-1), reduction="none", ignore_index=-100
    )
    total: Tensor = token.reshape(labels.shape).sum(dim=1)
    return total / batch.predicting.sum(dim=1)


Losses = Callable[[Any, TokenBatch], Tensor]
VARIANTS: dict[str, Losses] = {
    "ours": batch_losses,
    "gather then upcast": gathered_losses,
    "full logits": full_losses,
}
BASELINES = ("gather then upcast", "full logits")


def losses_and_hidden_gradients(losses: Losses, model: Any, batch: TokenBatch) -> tuple[Tensor, Tensor]:
    """Return the losses [b] and the gradient [b, t, h] of the last hidden states."""
    kept: list[Tensor] = []

    def keep(module: Any, args: Any, output: Any) -> None:
        output.last_hidden_state.retain_grad()
        kept.append(output.last_hidden_state)

    handle = model.model.register_forward_hook(keep)
    try:
        value = losses(model, batch)
        value.sum().backward()  # type: ignore[no-untyped-call]
    finally:
        handle.remove()
    gradient = kept[0].grad
    assert gradient is not None
    return value.detach(), gradient


def disagreements(model: Any, batch: TokenBatch) -> list[str]:
    """Return what differs between ours and each baseline, in sentences."""
    ours = losses_and_hidden_gradients(VARIANTS["ours"], model, batch)
    tolerance = TOLERANCE[model.dtype]
    found = []
    for name in BASELINES:
        theirs = losses_and_hidden_gradients(VARIANTS[name], model, batch)
        for what, value, truth in zip(("losses", "gradients of hidden states"), ours, theirs, strict=True):
            error = relative_error(value, truth)
            # Written so that NaN fails.
            if not error <= tolerance:
                found.append(f"{what} differ from {name} by {error:.1e}, more than {tolerance:.0e}")
    return found


def main(argv: list[str] | None = None) -> int:
    """Check, measure and print; return the exit code."""
    options = arguments(__doc__).parse_args(argv)
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    size = QUICK if options.quick else Size()
    device, dtype = default_device()
    model, batch = small_model(size, device, dtype), random_batch(size, device)
    found = disagreements(model, batch)
    if found:
        print("\n".join(found), file=sys.stderr)
        return 1

    def run(losses: Losses) -> Callable[[], None]:
        return lambda: losses(model, batch).sum().backward()  # type: ignore[no-untyped-call]

    setting = machine(device, dtype)
    costs = measure({name: run(losses) for name, losses in VARIANTS.items()}, options.repeats, device)
    rows = [Row.of(f"{CASE}, against {name}", costs["ours"], costs[name]) for name in BASELINES]
    logits = size.rows * size.tokens * size.vocabulary * 4
    shape = (
        f"{size.rows} rows x {size.tokens} tokens, {batch.targets.shape[0]} supervised, vocabulary {size.vocabulary}, "
        f"{size.layers} layers of width {size.hidden}; one float32 tensor of all logits is {logits / 1e6:,.1f} MB"
    )
    report(
        "Loss, forward and backward",
        [setting, shape],
        rows,
        [] if options.quick else [GOAL],
        options.json,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
