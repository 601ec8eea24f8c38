"""What the backends over transformers' Trainer share: the adapter, the arguments, the batches, and what is kept.

The loss is transformers' causal language-model loss: the mean over all targets of a batch. Rows without an answer
never reach it, padding is on the right, and the mask of each row is the mask that attribution uses.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import MISSING, dataclass, fields
from difflib import get_close_matches
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor
from transformers import TrainerCallback, TrainingArguments, set_seed
from transformers.trainer_callback import PrinterCallback

from gradian.address_space import is_out_of_memory
from gradian.config.schema import TrainConfig
from gradian.data.collate import pad_batch
from gradian.errors import ConfigError, RunError
from gradian.model.backends.base import ADAPTER_FOLDER, TRAINER_STATE, TrainingJob, TrainingOutcome
from gradian.model.load import quiet_transformers
from gradian.progress import Advance, Progress
from gradian.runs.gradian_run import RunCheckpoint
from gradian.types import EncodedExample

IGNORED_LABEL = -100
ALL_LINEAR = "all-linear"
# Of the trainer's arguments, those that the audit reads and that `train` has no setting for.
_RECORDED = ("fp16", "bf16", "optim", "use_liger_kernel")


@dataclass(frozen=True)
class Collator:
    """Pads encoded rows on the right and turns their masks into labels; IGNORED_LABEL where no token is a target."""

    pad_id: int

    def __call__(self, rows: Sequence[EncodedExample]) -> dict[str, Tensor]:
        """Return int64 [b, t] `input_ids`, `attention_mask` and `labels`."""
        batch = pad_batch(rows, self.pad_id)
        tokens = torch.from_numpy(batch.input_ids)
        return {
            "input_ids": tokens,
            "attention_mask": torch.from_numpy(batch.attention_mask),
            "labels": tokens.masked_fill(~torch.from_numpy(batch.supervised), IGNORED_LABEL),
        }


class Watch(TrainerCallback):  # type: ignore[misc]  # transformers is untyped
    """Shows the steps and saves adapters on the way."""

    def __init__(self, job: TrainingJob, model: Any) -> None:
        self.saved: list[RunCheckpoint] = []
        self._folder = job.folder
        self._settings = job.config.train
        self._progress: Progress = job.progress
        self._model = model
        self._stack = ExitStack()
        self._advance: Advance | None = None
        self._rate = 0.0

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *raised: object) -> None:
        self._stack.close()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Show how many steps there will be."""
        self._advance = self._stack.enter_context(self._progress.task("training", int(state.max_steps)))

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Note the learning rate of the step."""
        # Here and not at the end of the step, when the schedule has moved on to the next rate.
        self._rate = float(kwargs["optimizer"].param_groups[0]["lr"])

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Show the step, and save the adapter where it is due."""
        if self._advance is not None:
            self._advance(1)
        every = self._settings.save_steps
        if self._settings.save_checkpoints and every and state.global_step % every == 0:
            self._save(state)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Save the adapter where checkpoints are kept once an epoch."""
        if self._settings.save_checkpoints and not self._settings.save_steps:
            self._save(state)

    def _save(self, state: Any) -> None:
        name = f"checkpoint-{state.global_step}"
        save_adapter(self._model, self._folder / name)
        state.save_to_json(str(self._folder / name / TRAINER_STATE))
        self.saved.append(RunCheckpoint(name, int(state.global_step), float(state.epoch), self._rate))


def with_lora(model: Any, settings: TrainConfig, base_model: str) -> Any:
    """Return the model with a new adapter, which will name `base_model` as its base.

    Raises:
        ConfigError: PEFT cannot put such an adapter on the model.
    """
    try:
        lora = LoraConfig(
            r=settings.r,
            lora_alpha=settings.lora_alpha,
            lora_dropout=settings.lora_dropout,
            target_modules=settings.target_modules or ALL_LINEAR,
            task_type="CAUSAL_LM",
        )
        with quiet_transformers():
            tuned = get_peft_model(model, lora)
    except (ValueError, TypeError, RuntimeError) as error:
        if is_out_of_memory(error):
            raise
        raise ConfigError(
            "PEFT cannot put such an adapter on the base model",
            where="train.target_modules" if settings.target_modules else "train.r",
            found=(str(error).splitlines() or [type(error).__name__])[0][:300],
            expected="names of the base model's linear layers, such as q_proj, and a rank below their sides",
            fix="correct it, or leave target_modules out for all linear layers",
        ) from None
    tuned.peft_config["default"].base_model_name_or_path = base_model
    tuned.config.use_cache = False
    return tuned


def training_arguments(
    job: TrainingJob, device: torch.device, kind: type[Any], more: Mapping[str, Any] | None = None
) -> Any:
    """Return the trainer's arguments: what `train` sets, and `train.extra` on top.

    Args:
        job: its settings, seed and folder.
        device: where the model is.
        kind: TrainingArguments or a subclass of it.
        more: further arguments that the user may not set.

    Raises:
        ConfigError: an argument of `train.extra` is unknown, or already set; or `kind` refuses a value.
    """
    settings = job.config.train
    batches = math.ceil(len(job.encoded) / settings.per_device_train_batch_size)
    steps = math.ceil(math.ceil(batches / settings.gradient_accumulation_steps) * settings.num_train_epochs)
    own: dict[str, Any] = {
        "output_dir": str(job.folder),
        "per_device_train_batch_size": settings.per_device_train_batch_size,
        "gradient_accumulation_steps": settings.gradient_accumulation_steps,
        "learning_rate": settings.learning_rate,
        "num_train_epochs": settings.num_train_epochs,
        "lr_scheduler_type": settings.lr_scheduler_type,
        # In steps: `warmup_ratio` is gone from transformers 5.
        "warmup_steps": math.ceil(settings.warmup_ratio * steps),
        "max_grad_norm": settings.max_grad_norm,
        "weight_decay": settings.weight_decay,
        "logging_strategy": "steps",
        "logging_steps": settings.logging_steps,
        # A NaN in the curve is what its reader has to see.
        "logging_nan_inf_filter": False,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "remove_unused_columns": False,
        "label_names": ["labels"],
        "dataloader_pin_memory": device.type == "cuda",
        "use_cpu": device.type == "cpu",
        "seed": job.config.seed,
        "data_seed": job.config.seed,
        **(more or {}),
    }
    known = {entry.name for entry in fields(kind) if entry.init}
    package = kind.__module__.partition(".")[0]
    for key in settings.extra:
        if key in own:
            raise ConfigError(
                "this argument is Gradian's to set",
                where=f"train.extra.{key}",
                fix="use the settings of `train`",
            )
        if key not in known:
            close = get_close_matches(key, known, n=1)
            raise ConfigError(
                f"{package}.{kind.__name__} has no such argument",
                where=f"train.extra.{key}",
                fix=f"did you mean {close[0]!r}?" if close else None,
            )
    try:
        arguments = kind(**{**_defaults(kind), **own, **settings.extra})
    except (ValueError, TypeError) as error:
        raise ConfigError("the Trainer refuses its arguments", where="train", found=str(error)) from None
    if device.type == "cuda":
        # With several GPUs in sight the Trainer would split the batch over all of them.
        arguments._n_gpu = 1
    return arguments


def _defaults(kind: type[Any]) -> dict[str, Any]:
    # A subclass has defaults of its own (mixed precision, gradient checkpointing), which would make another run of
    # the same settings.
    theirs = {entry.name: entry.default for entry in fields(kind)}
    return {
        entry.name: entry.default
        for entry in fields(TrainingArguments)
        if entry.init and entry.default is not MISSING and theirs[entry.name] != entry.default
    }


def train_and_save(job: TrainingJob, model: Any, trainer: Any, watch: Watch) -> TrainingOutcome:
    """Run a trainer to its end, and write the adapter and the trainer's state into the job's folder.

    Raises:
        RunError: the adapter is no longer finite.
    """
    # It prints every log row to standard output.
    trainer.remove_callback(PrinterCallback)
    with watch:
        trainer.train()
    _refuse_divergence(model)
    save_adapter(model, job.folder / ADAPTER_FOLDER)
    trainer.state.save_to_json(str(job.folder / TRAINER_STATE))
    return TrainingOutcome(
        lora=_plain(model.peft_config["default"].to_dict()),
        steps=int(trainer.state.global_step),
        log_history=tuple(dict(row) for row in trainer.state.log_history),
        checkpoints=tuple(watch.saved),
        arguments=_plain({name: getattr(trainer.args, name) for name in _RECORDED}),
    )


def refuse_four_bit(settings: TrainConfig, backend: str) -> None:
    """Raise a ConfigError where `train.load_in_4bit` is set, for a backend that does not quantise."""
    if settings.load_in_4bit:
        raise ConfigError(
            f"the {backend} backend trains in the base model's own precision",
            where="train.load_in_4bit",
            fix="set it to false, or train with the backend unsloth",
        )


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """While active, random numbers follow from the seed; afterwards the caller's go on where they were."""
    # Adapter initialisation, shuffling and dropout draw from the global generators.
    python, numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng():
            set_seed(seed)
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


def padding_id(tokenizer: Any) -> int:
    """Return the token id that batches are padded with; no loss and no attention reads it."""
    found = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    return int(found or 0)


def save_adapter(model: Any, folder: Path) -> None:
    """Write the adapter in PEFT's format, the same bytes for the same adapter."""
    # "auto" would ask the Hub for the base model's configuration; embeddings are never trained here.
    model.save_pretrained(str(folder), safe_serialization=True, save_embedding_layers=False)
    # PEFT keeps the targets as a set and writes them in the order of the process's hash seed.
    path = folder / "adapter_config.json"
    settings = json.loads(path.read_text(encoding="utf-8"))
    if isinstance(settings["target_modules"], list):
        settings["target_modules"].sort()
        path.write_text(json.dumps(settings, indent=2, sort_keys=True), encoding="utf-8")


def _refuse_divergence(model: Any) -> None:
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and not torch.isfinite(parameter).all():
            raise RunError(
                "training diverged: the adapter holds NaN or infinite values",
                where=name,
                fix="lower train.learning_rate, or raise train.warmup_ratio",
            )


def _plain(value: Any) -> Any:
    # PEFT's settings hold sets and enums.
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(_plain(item) for item in value)
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
