"""Per-example losses of a causal language model, computed only where a token is supervised.

A pre-hook on the output head gathers the hidden states that predict a supervised token, so logits exist for
those N positions and no others: [1, N, V] instead of [b, t, V]. Where Triton's kernels run and the head is a plain
linear map, not even those exist: the head is shown one position, and the loss is computed from the gathered
hidden states and the head's weight.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from gradian.data.collate import PaddedBatch, length_batches, pad_batch
from gradian.errors import GradientError
from gradian.grads.memory import explain_out_of_memory
from gradian.grads.output_head import head_obstacle, logit_form
from gradian.ops import linear_cross_entropy as fused
from gradian.ops.cross_entropy import cross_entropy
from gradian.types import EncodedExample, FloatArray

if TYPE_CHECKING:
    from gradian.model.load import LoadedModel

Reduction = Literal["mean", "sum"]


@dataclass(frozen=True, eq=False)
class TokenBatch:
    """A padded batch on the model's device, with its supervised positions listed.

    Attributes:
        input_ids: int64 [b, t].
        attention_mask: int64 [b, t].
        position_ids: int64 [b, t].
        predicting: bool [b, t]; True where the hidden state predicts a supervised token (one position
            before it).
        targets: int64 [N]; the supervised tokens, row by row.
        owner: int64 [N]; the row of each.
    """

    input_ids: Tensor
    attention_mask: Tensor
    position_ids: Tensor
    predicting: Tensor
    targets: Tensor
    owner: Tensor

    @classmethod
    def from_padded(cls, batch: PaddedBatch, device: torch.device) -> TokenBatch:
        """Move a collated batch to `device`."""
        # Listed on the CPU: boolean indexing on a GPU waits for the device to count.
        rows, columns = np.nonzero(batch.supervised[:, 1:])
        predicting = np.zeros_like(batch.supervised)
        predicting[:, :-1] = batch.supervised[:, 1:]

        def move(array: Any) -> Tensor:
            return torch.from_numpy(np.ascontiguousarray(array)).to(device)

        return cls(
            input_ids=move(batch.input_ids),
            attention_mask=move(batch.attention_mask),
            position_ids=move(batch.position_ids),
            predicting=move(predicting),
            targets=move(batch.input_ids[rows, columns + 1]),
            owner=move(rows.astype(np.int64)),
        )

    @property
    def n_rows(self) -> int:
        """Number of examples, b."""
        return int(self.input_ids.shape[0])

    @property
    def flat_positions(self) -> Tensor:
        """int64 [N]: the predicting positions in the flattened [b * t] batch, row by row."""
        return self.predicting.reshape(-1).nonzero().squeeze(1)


def slot_in_owner(owner: Tensor, n_examples: int) -> tuple[Tensor, int]:
    """Return each row's place among the rows of its owner, and the largest count.

    Args:
        owner: int64 [N], in any order.
        n_examples: number of owners.

    Returns:
        (int64 [N], the largest number of rows that one owner has, at least 1).
    """
    order = torch.argsort(owner, stable=True)
    counts = torch.bincount(owner, minlength=n_examples)
    starts = counts.cumsum(0) - counts
    ranks = torch.arange(owner.shape[0], device=owner.device)
    slot = torch.empty_like(owner)
    slot[order] = ranks - starts[owner[order]]
    return slot, max(1, int(counts.max()) if counts.numel() else 1)


def per_example_ce(
    logits: Tensor, targets: Tensor, owner: Tensor, n_examples: int, reduction: Reduction = "mean"
) -> Tensor:
    """Return each example's cross entropy in nats over its own rows.

    Args:
        logits: [N, V]; overwritten with their gradient by the backward pass.
        targets: int64 [N].
        owner: int64 [N]; the example of each row, in [0, n_examples).
        n_examples: number of examples.
        reduction: `mean` or `sum` over an example's rows.

    Returns:
        float32 [n_examples] (float64 for float64 logits); exactly zero where an example has no row.
    """
    return _by_example(cross_entropy(logits, targets), owner, n_examples, reduction)


def _by_example(token: Tensor, owner: Tensor, n_examples: int, reduction: Reduction) -> Tensor:
    """Reduce the losses [N] of tokens to those [n_examples] of their owners."""
    # A padded table summed along its rows, not index_add, whose order is not fixed on a GPU.
    slot, width = slot_in_owner(owner, n_examples)
    table = token.new_zeros(n_examples, width).index_put((owner, slot), token)
    total = table.sum(dim=1)
    if reduction == "sum":
        return total
    return total / torch.bincount(owner, minlength=n_examples).clamp(min=1)


def _accepted_inputs(model: Any) -> frozenset[str]:
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    return frozenset(inspect.signature(inner.forward).parameters)


def _model_inputs(model: Any, batch: TokenBatch) -> dict[str, Any]:
    inputs = {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask, "use_cache": False}
    if "position_ids" in _accepted_inputs(model):
        inputs["position_ids"] = batch.position_ids
    return inputs


def _output_head(model: Any) -> torch.nn.Module:
    head = model.get_output_embeddings()
    if not isinstance(head, torch.nn.Module):
        raise GradientError(
            "the model has no output head that transformers can name",
            where=type(model).__name__,
            fix="use a model class whose get_output_embeddings() returns its language-model head",
        )
    return head


@contextmanager
def _gather_before_head(
    head: torch.nn.Module, positions: Tensor, *, bypass: bool = False
) -> Iterator[list[Tensor]]:
    """While active, `head` sees only the hidden states at the flattened `positions`, as [1, N, h].

    With `bypass` it sees one of them, as little as the model's own code can go on with. Yields a list that
    holds the hidden states [N, h] of each call.
    """
    calls: list[Tensor] = []

    def gather(module: torch.nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        hidden = args[0]
        rows = hidden.reshape(-1, hidden.shape[-1]).index_select(0, positions.to(hidden.device))
        calls.append(rows)
        return ((rows[:1].detach() if bypass else rows).unsqueeze(0), *args[1:])

    handle = head.register_forward_pre_hook(gather)
    try:
        yield calls
    finally:
        handle.remove()


def _gathered(
    model: Any,
    head: torch.nn.Module,
    batch: TokenBatch,
    *,
    bypass: bool = False,
    parameters: Mapping[str, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Run the model; return the hidden states [N, h] and the logits [N, V], or [1, V] with `bypass`."""
    with _gather_before_head(head, batch.flat_positions, bypass=bypass) as calls:
        inputs = _model_inputs(model, batch)
        output = (
            torch.func.functional_call(model, dict(parameters), (), inputs) if parameters else model(**inputs)
        )
        logits: Tensor = output.logits
    rows = min(1, batch.targets.shape[0]) if bypass else batch.targets.shape[0]
    if len(calls) != 1 or logits.shape[:-1] != (1, rows):
        raise GradientError(
            "the output head was not called once on the last hidden states",
            where=type(model).__name__,
            found=f"{len(calls)} calls, logits of shape {tuple(logits.shape)}",
            expected=f"1 call, logits [1, {rows}, vocabulary]",
        )
    return calls[0], logits.squeeze(0)


def supervised_logits(
    model: Any, batch: TokenBatch, parameters: Mapping[str, Tensor] | None = None
) -> Tensor:
    """Run the model and return the logits [N, V] that predict the supervised tokens, row by row.

    Args:
        model: the model.
        batch: the batch.
        parameters: values in place of the model's own parameters of these names.

    Raises:
        GradientError: the model's output head cannot be found or is not used exactly once.
    """
    return _gathered(model, _output_head(model), batch, parameters=parameters)[1]


def _fused_losses(model: Any, batch: TokenBatch, impl: str | None) -> Tensor | None:
    """Return the losses [N] from hidden states and the head's weight, or None where the head must run."""
    head = _output_head(model)
    if not isinstance(head, torch.nn.Linear) or head_obstacle(head) is not None:
        return None
    weight, bias = head.weight, head.bias
    # On the CPU the reference would multiply three times where a head that runs multiplies twice.
    if impl is None and fused.OP.backend(weight.device, weight.dtype) != "triton":
        return None
    form = logit_form(model, head, _model_inputs(model, batch))
    if form is None:
        return None
    hidden, _ = _gathered(model, head, batch, bypass=True)
    targets = batch.targets.to(hidden.device)
    return fused.linear_cross_entropy(hidden, weight, targets, bias, form.softcap, form.scale, impl)


def batch_losses(
    model: Any, batch: TokenBatch, reduction: Reduction = "mean", fused_head: str | None = None
) -> Tensor:
    """Return the differentiable loss of each example of a batch, [b]; rows must have supervised tokens.

    Args:
        model: the model.
        batch: the batch.
        reduction: `mean` or `sum` over an example's supervised tokens.
        fused_head: implementation of `linear_cross_entropy` to use where the head allows it; None uses it where
            its Triton kernels run, and else runs the head.

    Raises:
        GradientError: the model's output head cannot be found or is not used exactly once.
    """
    token = _fused_losses(model, batch, fused_head)
    if token is None:
        logits = supervised_logits(model, batch)
        token = cross_entropy(logits, batch.targets.to(logits.device))
    return _by_example(token, batch.owner.to(token.device), batch.n_rows, reduction)


def pad_token(tokenizer: Any) -> int:
    """Return a token id to pad with. Its value changes nothing: padding is masked out."""
    for candidate in (tokenizer.pad_token_id, tokenizer.eos_token_id):
        if isinstance(candidate, int):
            return candidate
    return 0


def example_losses(
    loaded: LoadedModel,
    encoded: Sequence[EncodedExample],
    batch_size: int,
    reduction: Reduction = "mean",
    progress: Callable[[int], None] | None = None,
) -> FloatArray:
    """Return each example's loss in nats, forward only.

    Args:
        loaded: the model; whether its adapter is on is the caller's choice.
        encoded: the examples; one without a supervised token gets 0 and does not enter the model.
        batch_size: most rows in one forward pass.
        reduction: `mean` or `sum` over an example's supervised tokens.
        progress: called with the number of examples done after each batch.

    Returns:
        float64 [n]. Non-finite values are returned as they are.

    Raises:
        DeviceMemoryError: the device has no memory for a batch.
    """
    losses = np.zeros(len(encoded), dtype=np.float64)
    live = [i for i, example in enumerate(encoded) if example.n_supervised]
    pad_id = pad_token(loaded.tokenizer)
    for batch in length_batches([len(encoded[i]) for i in live], batch_size):
        rows = [live[int(i)] for i in batch]
        chosen = [encoded[i] for i in rows]
        with torch.no_grad(), explain_out_of_memory(chosen, "evaluation.batch_size"):
            tokens = TokenBatch.from_padded(pad_batch(chosen, pad_id), loaded.device)
            losses[rows] = batch_losses(loaded.model, tokens, reduction).double().cpu().numpy()
        if progress is not None:
            progress(len(rows))
    return losses
