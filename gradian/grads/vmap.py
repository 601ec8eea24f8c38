"""Per-example gradients by torch.func: vmap over examples of the gradient of one example's loss.

Opt-in: transformers' forward passes are not written for vmap, so a model may refuse it. No attention mask is
passed (its shape tests do not trace): rows are padded on the right, where a causal model cannot look.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gradian.address_space import is_out_of_memory
from gradian.errors import GradientError
from gradian.grads.loss import Reduction, TokenBatch
from gradian.grads.strategy import AS_CAPTURED, STRATEGIES, BatchGradients, Epilogue, as_blocks, finished
from gradian.model.lora import LoraBlocks


def _token_losses(logits: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    """Weighted sum of cross entropies; the op's own backward cannot be vmapped."""
    log_probabilities = torch.log_softmax(logits.to(torch.promote_types(logits.dtype, torch.float32)), dim=-1)
    return -(log_probabilities.gather(-1, targets[..., None]).squeeze(-1) * weights).sum()


@STRATEGIES.register("vmap")
def vmap_gradients(
    model: Any,
    blocks: LoraBlocks,
    batch: TokenBatch,
    reduction: Reduction,
    epilogue: Epilogue = AS_CAPTURED,
) -> BatchGradients:
    """Capture per-example gradients by vmap.

    Raises:
        GradientError: the batch is padded on the left, or the model's forward pass cannot be vmapped.
    """
    if not bool((batch.attention_mask[:, :-1] >= batch.attention_mask[:, 1:]).all()):
        raise GradientError("the vmap strategy takes rows padded on the right only")
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    weights = [weight for pair in blocks.pairs for weight in (pair.a.weight, pair.b.weight)]
    parameters = {names[id(weight)]: weight.detach() for weight in weights}

    def loss_of(values: dict[str, Tensor], input_ids: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
        inputs = {"input_ids": input_ids[None], "use_cache": False}
        logits = torch.func.functional_call(model, values, (), inputs).logits[0]
        loss = _token_losses(logits[:-1], input_ids[1:], share)
        return loss, loss.detach()

    share = batch.predicting[:, :-1].to(torch.float32)
    if reduction == "mean":
        share = share / share.sum(dim=1, keepdim=True)
    per_example = torch.func.vmap(torch.func.grad(loss_of, has_aux=True), in_dims=(None, 0, 0))
    try:
        grads, losses = per_example(parameters, batch.input_ids, share)
    except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
        if is_out_of_memory(error):
            raise
        raise GradientError(
            "this model's forward pass cannot be vmapped",
            where="grads.strategy",
            found=(str(error).splitlines() or [type(error).__name__])[0],
            fix="set grads.strategy to hooks",
        ) from error
    maths = torch.promote_types(losses.dtype, torch.float32)
    values = [grads[names[id(weight)]].to(maths) for weight in weights]
    pairs = list(zip(values[::2], values[1::2], strict=True))
    return finished(losses, as_blocks(pairs, blocks.granularity), epilogue)
