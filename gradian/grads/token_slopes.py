"""The slope of every supervised token's loss along one direction of the adapter's parameters, in one forward pass.

Forward-mode differentiation carries d/de loss_t(theta + e v) beside each value, so the directional derivatives of
all tokens come at once, where reverse mode would need a backward pass for each token's loss.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
import torch.autograd.forward_ad as forward
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from gradian.address_space import is_out_of_memory
from gradian.errors import GradientError
from gradian.grads.loss import TokenBatch, supervised_logits
from gradian.model.lora import LoraBlocks


def token_slopes(model: Any, blocks: LoraBlocks, batch: TokenBatch, direction: Sequence[Tensor]) -> Tensor:
    """Return <v, grad loss_t> for each supervised token t, float32 [N] (float64 for a float64 model).

    Args:
        model: the model; its parameters are left as they are.
        blocks: the blocks that `direction` is laid out by.
        batch: the tokens.
        direction: v, per block [d_l], before any projection.

    Raises:
        GradientError: a part of the model has no forward-mode derivative.
    """
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    with warnings.catch_warnings(), forward.dual_level():
        # torch compiles its own derivative formulas on first use, in a way that it has deprecated.
        warnings.filterwarnings("ignore", message=".*torch.jit")
        values = {
            names[id(weight)]: forward.make_dual(weight.detach(), tangent.to(weight))  # type: ignore[no-untyped-call]
            for weight, tangent in _tangents(blocks, direction)
        }
        try:
            # Only the attention written out in separate products has forward-mode derivatives.
            with sdpa_kernel(SDPBackend.MATH):
                logits = supervised_logits(model, batch, values)
            logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
            targets = batch.targets.to(logits.device)
            chosen = logits.gather(1, targets[:, None]).squeeze(1)
            slopes = forward.unpack_dual(torch.logsumexp(logits, dim=1) - chosen).tangent  # type: ignore[no-untyped-call]
        except (RuntimeError, NotImplementedError) as error:
            if is_out_of_memory(error):
                raise
            raise GradientError(
                "a part of this model has no forward-mode derivative, so tokens cannot be scored in one pass",
                where="attn_implementation",
                found=(str(error).splitlines() or [type(error).__name__])[0],
                fix="set attn_implementation to eager; sentences are scored without it (--no-tokens)",
            ) from error
    # Nothing that the direction moves reaches the loss.
    return torch.zeros_like(chosen) if slopes is None else slopes.detach()


def _tangents(blocks: LoraBlocks, direction: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Pair each LoRA weight with its part of the direction."""
    paired: list[tuple[Tensor, Tensor]] = []
    flat = iter(direction)
    for pair in blocks.pairs:
        a, b = pair.a.weight, pair.b.weight
        first = next(flat)
        of_b = first[a.numel() :] if blocks.granularity == "module" else next(flat)
        paired += [(a, first[: a.numel()].view_as(a)), (b, of_b.view_as(b))]
    return paired
