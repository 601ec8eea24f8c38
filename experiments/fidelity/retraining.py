"""One retraining of a small LoRA on the last layers, over activations that the layers below gave once.

The recipe is that of `gradian train`: the same initialisation, order, optimizer, schedule and loss, so that a
retraining on all rows gives the adapter that `gradian train` gives. What differs is what is computed again: layers
without LoRA below the first adapted one give the same hidden states in every step of every retraining.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import get_scheduler

from gradian.config.schema import TrainConfig
from gradian.data.collate import length_batches, pad_batch
from gradian.grads.loss import TokenBatch, batch_losses, pad_token, supervised_logits
from gradian.model.backends.trainer import save_adapter, with_lora
from gradian.model.load import LoadedModel
from gradian.ops.cross_entropy import cross_entropy
from gradian.types import BoolArray, EncodedExample, FloatArray

_EVALUATION_ROWS = 8


def upper_targets(model: Any, first_layer: int) -> list[str]:
    """Return the names of the linear layers from decoder layer `first_layer` on, for `train.target_modules`."""
    names = []
    for number, layer in enumerate(model.model.layers):
        if number >= first_layer:
            names += [
                f"layers.{number}.{name}"
                for name, module in layer.named_modules()
                if isinstance(module, nn.Linear)
            ]
    return names


class _Recalled(nn.Module):
    """Stands in for the embedding: gives the hidden states that were put there for this batch."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden: Tensor | None = None

    def forward(self, input_ids: Tensor) -> Tensor:
        hidden, self.hidden = self.hidden, None
        if hidden is None or hidden.shape[:2] != input_ids.shape:
            raise RuntimeError("the hidden states of this batch were not put in place")
        return hidden


@dataclass(frozen=True, eq=False)
class Fitted:
    """An adapter after training.

    Attributes:
        weights: every trained tensor, by its name in the PEFT model.
        loss: mean training loss of the last epoch, over its batches.
        steps: optimizer steps.
    """

    weights: dict[str, Tensor]
    loss: float
    steps: int


class Retrainer:
    """Trains the adapter on subsets of the rows, and measures losses under it.

    Args:
        loaded: the base model; it is changed and must not be used elsewhere.
        train: the recipe; `target_modules` are those of `upper_targets`.
        first_layer: the first decoder layer with LoRA.
        rows: all training rows, [n].
        measured: the rows whose losses are measured.
        cached: whether layers below `first_layer` run once for all; False runs the whole model every time, which
            gives the same numbers.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        train: TrainConfig,
        first_layer: int,
        rows: Sequence[EncodedExample],
        measured: Sequence[EncodedExample],
        *,
        cached: bool = True,
    ) -> None:
        self.train = train
        self.rows = tuple(rows)
        self.measured = tuple(measured)
        self._device = loaded.device
        self._pad = pad_token(loaded.tokenizer)
        self._base = loaded.model
        self._initial: dict[int, dict[str, Tensor]] = {}
        self._first_layer = first_layer
        self._tuned: Any = None
        self._hidden: dict[int, Tensor] | None = self._lower_activations() if cached else None
        self._recalled = _Recalled()

    def fit(self, kept: BoolArray, seed: int) -> Fitted:
        """Train from this seed's initialisation on the kept rows.

        The order is the seed's order of all rows without those that are dropped, cut into batches anew.

        Args:
            kept: [n].
            seed: of initialisation and order.
        """
        self._start(seed)
        settings, size = self.train, self.train.per_device_train_batch_size
        epochs = int(settings.num_train_epochs)
        if epochs != settings.num_train_epochs or settings.gradient_accumulation_steps != 1:
            raise ValueError("want whole epochs and no gradient accumulation")
        steps = math.ceil(int(kept.sum()) / size) * epochs
        parameters = [p for p in self._tuned.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(
            parameters, lr=settings.learning_rate, weight_decay=settings.weight_decay
        )
        schedule = get_scheduler(
            settings.lr_scheduler_type,
            optimizer,
            num_warmup_steps=math.ceil(settings.warmup_ratio * steps),
            num_training_steps=steps,
        )
        self._tuned.train()
        losses: list[float] = []
        with self._shortened():
            for epoch in range(epochs):
                losses = []
                order = epoch_order(kept, seed, epoch)
                for start in range(0, len(order), size):
                    batch = self._batch([self.rows[int(i)] for i in order[start : start + size]])
                    loss = cross_entropy(supervised_logits(self._tuned, batch), batch.targets).mean()
                    loss.backward()
                    if settings.max_grad_norm:
                        nn.utils.clip_grad_norm_(parameters, settings.max_grad_norm)
                    optimizer.step()
                    schedule.step()
                    optimizer.zero_grad()
                    losses.append(float(loss.detach()))
        weights = {name: p.detach().clone() for name, p in self._tuned.named_parameters() if p.requires_grad}
        return Fitted(weights, float(np.mean(losses)), steps)

    def losses(self) -> FloatArray:
        """Return the loss of each measured row under the adapter as it is now, float64 [measured], nats a token."""
        return self._losses(self.measured)

    def base_losses(self) -> FloatArray:
        """Return the loss of each measured row under the base model, float64 [measured]."""
        if self._tuned is None:
            self._wrap(0)
        with self._tuned.disable_adapter():
            return self._losses(self.measured)

    def _losses(self, rows: Sequence[EncodedExample]) -> FloatArray:
        found = np.zeros(len(rows))
        self._tuned.eval()
        with self._shortened(), torch.no_grad():
            for indices in length_batches([len(row) for row in rows], _EVALUATION_ROWS):
                batch = self._batch([rows[int(i)] for i in indices])
                found[indices] = batch_losses(self._tuned, batch).double().numpy()
        return found

    def save(self, folder: Path, base_model: str) -> None:
        """Write the adapter as it is now; `base_model` is what it names as its base."""
        self._tuned.peft_config["default"].base_model_name_or_path = base_model
        save_adapter(self._tuned, folder)

    def _batch(self, rows: Sequence[EncodedExample]) -> TokenBatch:
        batch = TokenBatch.from_padded(pad_batch(rows, self._pad), self._device)
        if self._hidden is not None:
            parts = [self._hidden[id(row)] for row in rows]
            self._recalled.hidden = nn.utils.rnn.pad_sequence(parts, batch_first=True)
        return batch

    def _start(self, seed: int) -> None:
        """Put this seed's untrained adapter on the model."""
        if self._tuned is None or seed not in self._initial:
            self._wrap(seed)
        with torch.no_grad():
            for name, parameter in self._tuned.named_parameters():
                if parameter.requires_grad:
                    parameter.copy_(self._initial[seed][name])

    def _wrap(self, seed: int) -> None:
        # PEFT draws while it builds the adapter, so only building one anew gives what another seed would have.
        base = self._base if self._tuned is None else self._tuned.unload()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self._tuned = with_lora(base, self.train, base.name_or_path)
        self._initial[seed] = {
            name: p.detach().clone() for name, p in self._tuned.named_parameters() if p.requires_grad
        }

    def _lower_activations(self) -> dict[int, Tensor]:
        """Return the hidden states [t, h] that enter the first adapted layer, by the identity of the row."""
        decoder, rows = self._base.model, (*self.rows, *self.measured)
        found: dict[int, Tensor] = {}
        entering: list[Tensor] = []

        def note(module: nn.Module, args: tuple[Any, ...]) -> None:
            entering.append(args[0])

        handle = decoder.layers[self._first_layer].register_forward_pre_hook(note)
        try:
            with torch.no_grad():
                for indices in length_batches([len(row) for row in rows], _EVALUATION_ROWS):
                    chosen = [rows[int(i)] for i in indices]
                    batch = TokenBatch.from_padded(pad_batch(chosen, self._pad), self._device)
                    decoder(
                        input_ids=batch.input_ids,
                        attention_mask=batch.attention_mask,
                        position_ids=batch.position_ids,
                        use_cache=False,
                    )
                    for row, hidden in zip(chosen, entering.pop(), strict=True):
                        found[id(row)] = hidden[: len(row)].clone()
        finally:
            handle.remove()
        return found

    @contextmanager
    def _shortened(self) -> Iterator[None]:
        """While active, the model starts at the first adapted layer, from the hidden states of the batch."""
        if self._hidden is None:
            yield
            return
        decoder = self._base.model
        embedding, layers = decoder.embed_tokens, decoder.layers
        decoder.embed_tokens, decoder.layers = self._recalled, layers[self._first_layer :]
        try:
            yield
        finally:
            decoder.embed_tokens, decoder.layers = embedding, layers


def epoch_order(kept: BoolArray, seed: int, epoch: int) -> list[int]:
    """Return the kept rows in the order in which the Trainer visits all rows in an epoch.

    Args:
        kept: [n].
        seed: of the run.
        epoch: counted from 0.
    """
    generator = torch.Generator().manual_seed(seed + epoch)
    return [i for i in torch.randperm(len(kept), generator=generator).tolist() if kept[i]]
