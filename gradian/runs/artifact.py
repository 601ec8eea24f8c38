"""The normalised run: what a training run's folder says, whichever trainer wrote it.

None means that the folder does not say. Nothing here is a trainer's default filled in by Gradian, unless the
source names it as one (`sources` then says "default of ...").
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal


@dataclass(frozen=True)
class HyperParameters:
    """Settings of a training run.

    Attributes:
        learning_rate: peak rate, as configured (not scaled by alpha / r).
        epochs: passes over the data that were asked for.
        max_steps: optimizer steps that were asked for; None when epochs decide.
        per_device_batch: rows in one forward pass on one device.
        grad_accum: forward passes in one optimizer step.
        n_devices: devices that shared a step; 1 when the folder does not say.
        warmup_steps, warmup_ratio: at most one is set; steps, or a share of all steps.
        scheduler: name of the learning-rate schedule.
        optimizer: name of the optimizer.
        weight_decay: weight decay.
        max_grad_norm: where the gradient norm is clipped; 0 means that it is not.
        max_length: tokens at which rows are cut or dropped.
        overlong_rows: what becomes of longer rows.
        packing: whether rows are packed together; `packing_strategy` as the trainer names it.
        padding_free: whether a batch is flattened instead of padded.
        assistant_only_loss, completion_only_loss: the loss mask asked for; None when unset.
        train_on_inputs: whether prompts are targets too (axolotl, LLaMA-Factory).
        response_marker: text that a `train_on_responses_only` call looks for.
        use_liger_kernel: whether fused Liger kernels compute the loss.
        seed: the seed.
        fp16, bf16: mixed precision; `bf16` may be "auto".
        eval_strategy: when the trainer evaluates; "no" when never.
        eval_rows: rows of the eval set, where known.
        logging_nan_inf_filter: whether the trainer hides NaN losses in its log.
        data_collator: class name of the collator, where recorded.
        pad_token: padding token, where recorded.
        load_in_4bit: whether the base was quantised in training.
    """

    learning_rate: float | None = None
    epochs: float | None = None
    max_steps: int | None = None
    per_device_batch: int | None = None
    grad_accum: int | None = None
    n_devices: int = 1
    warmup_steps: int | None = None
    warmup_ratio: float | None = None
    scheduler: str | None = None
    optimizer: str | None = None
    weight_decay: float | None = None
    max_grad_norm: float | None = None
    max_length: int | None = None
    overlong_rows: Literal["truncate", "drop"] | None = None
    packing: bool | None = None
    packing_strategy: str | None = None
    padding_free: bool | None = None
    assistant_only_loss: bool | None = None
    completion_only_loss: bool | None = None
    train_on_inputs: bool | None = None
    response_marker: str | None = None
    use_liger_kernel: bool | None = None
    seed: int | None = None
    fp16: bool | None = None
    bf16: bool | str | None = None
    eval_strategy: str | None = None
    eval_rows: int | None = None
    logging_nan_inf_filter: bool | None = None
    data_collator: str | None = None
    pad_token: str | None = None
    load_in_4bit: bool | None = None

    @property
    def effective_batch(self) -> int | None:
        """Rows behind one optimizer step: batch times accumulation times devices."""
        if self.per_device_batch is None:
            return None
        return self.per_device_batch * (self.grad_accum or 1) * self.n_devices


@dataclass(frozen=True)
class LoraSettings:
    """The adapter's own settings, from `adapter_config.json`.

    Attributes:
        r: rank.
        alpha: numerator of the update's scale.
        dropout: dropout on the LoRA input.
        target_modules: module names, or the one regular expression or keyword that was given.
        use_rslora, use_dora: variants.
        bias: `none`, `all` or `lora_only`.
        modules_to_save: modules trained whole.
        n_parameters: elements of all tensors in the adapter's weights file, from its header.
        zero_b: adapted modules whose `lora_B` is exactly zero, so that the adapter does nothing there.
        n_modules: adapted modules in the weights file.
        raw: the whole file.
    """

    r: int | None = None
    alpha: float | None = None
    dropout: float | None = None
    target_modules: tuple[str, ...] | str | None = None
    use_rslora: bool = False
    use_dora: bool = False
    bias: str = "none"
    modules_to_save: tuple[str, ...] = ()
    n_parameters: int | None = None
    zero_b: tuple[str, ...] = ()
    n_modules: int | None = None
    raw: Mapping[str, Any] = field(default_factory=dict)

    @property
    def scaling(self) -> float | None:
        """What an update is multiplied by: alpha / r, or alpha / sqrt(r) under rsLoRA (Kalajdzievski 2023)."""
        if self.alpha is None or not self.r:
            return None
        return self.alpha / (math.sqrt(self.r) if self.use_rslora else self.r)


@dataclass(frozen=True)
class LogRow:
    """One logged training step; NaN and infinities are kept as such.

    Attributes:
        step: optimizer step.
        loss: mean loss since the last row, nats.
        grad_norm: before clipping.
        learning_rate: at the step.
        epoch: passes so far.
    """

    step: int
    loss: float | None = None
    grad_norm: float | None = None
    learning_rate: float | None = None
    epoch: float | None = None


@dataclass(frozen=True)
class EvalRow:
    """One evaluation in training.

    Attributes:
        step: optimizer step.
        loss: eval loss, nats.
        name: of the eval set; empty when there is one only.
        epoch: passes so far.
        metrics: other numbers of the row.
    """

    step: int
    loss: float | None = None
    name: str = ""
    epoch: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Unread:
    """Something in the folder that could not be read, and why."""

    file: str
    reason: str


@dataclass(frozen=True)
class Resume:
    """What a resumed run shows.

    Attributes:
        from_step: the step that training went back to.
        overlapping: steps that are logged twice or more.
        batch_sizes: per-device batch sizes in order, when they changed.
    """

    from_step: int
    overlapping: tuple[int, ...]
    batch_sizes: tuple[int, ...] = ()


@dataclass(frozen=True)
class RunArtifact:
    """One training run.

    Attributes:
        folder: the folder that was given.
        trainer: who wrote it.
        hyper: its settings.
        lora: its adapter's settings; None when there is no adapter.
        base_model: what the adapter says it was trained on.
        train_log, eval_log: in order of steps; a step logged again after a resume counts once, the later row.
        summary: the last row of the log with its totals.
        global_step: optimizer steps taken.
        total_steps: optimizer steps planned.
        checkpoint: the checkpoint folder that the state was read from; None when the root has it.
        resumes: times that the run went back.
        n_train_rows: rows it was trained on, where recorded.
        versions: of libraries, where recorded.
        sources: per field of `hyper` (and `base_model`) which file and key it came from.
        unread: what could not be read.
        has_log: whether a trainer's log was found.
    """

    folder: Path
    trainer: Literal["gradian", "transformers", "trl", "axolotl", "llamafactory", "unsloth", "unknown"]
    hyper: HyperParameters = HyperParameters()
    lora: LoraSettings | None = None
    base_model: str | None = None
    train_log: tuple[LogRow, ...] = ()
    eval_log: tuple[EvalRow, ...] = ()
    summary: Mapping[str, float] = field(default_factory=dict)
    global_step: int | None = None
    total_steps: int | None = None
    checkpoint: str | None = None
    resumes: tuple[Resume, ...] = ()
    n_train_rows: int | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    unread: tuple[Unread, ...] = ()
    has_log: bool = False

    @property
    def effective_learning_rate(self) -> float | None:
        """Learning rate times the adapter's scaling; None when either is not known."""
        scaling = self.lora.scaling if self.lora else None
        if self.hyper.learning_rate is None or scaling is None:
            return None
        return self.hyper.learning_rate * scaling

    @property
    def eval_sets(self) -> tuple[str, ...]:
        """Names of the eval sets, in order of appearance."""
        return tuple(dict.fromkeys(row.name for row in self.eval_log))
