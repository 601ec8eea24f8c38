"""Settings of the suite: sizes, rates, and what `--quick` makes of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

DEFAULT_MODEL = "unsloth/Llama-3.2-1B-Instruct"


@dataclass(frozen=True)
class SuiteSettings:
    """Everything that decides what the suite trains and measures.

    Attributes:
        model: hub id or folder of a chat model.
        n_clean: clean rows of experiments A, C and D.
        poison_fraction: share of the planted rows in the whole training file.
        epochs: passes over the poisoned file.
        learning_rate: peak rate there; alpha / r = 2 doubles it.
        n_broken: clean rows of experiment B, whose settings are at fault.
        n_items: eval items. Sixteen halve the step of eight, in which one item moves the metric by 0.125.
        batch_size: rows in one training batch.
        r: LoRA rank; alpha is twice as much.
        max_seq_length: where rows are cut, in training and in the index.
        max_new_tokens: longest answer.
        seed: of everything.
        module_filter: modules to index; None for all.
        fp16_store: halve the index.
        projection_dim: width of the projection of a block; None for none.
        grad_batch_size: rows in one pass that captures gradients; None for the config's.
        alpaca: a local copy of Alpaca, or any dataset file, to take the clean rows from.
        poisons: what experiment A plants.
        control: whether experiment C also drops as many random rows.
    """

    model: str = DEFAULT_MODEL
    n_clean: int = 800
    poison_fraction: float = 0.06
    epochs: float = 3
    learning_rate: float = 2e-4
    n_broken: int = 800
    n_items: int = 16
    batch_size: int = 8
    r: int = 8
    max_seq_length: int = 512
    max_new_tokens: int = 16
    seed: int = 1234
    module_filter: str | None = None
    fp16_store: bool = False
    projection_dim: int | None = None
    grad_batch_size: int | None = None
    alpaca: Path | None = None
    poisons: tuple[str, ...] = ("wrong_facts", "refusal")
    control: bool = False

    @property
    def n_planted(self) -> int:
        """Planted rows, so that they are `poison_fraction` of the whole file."""
        return max(1, round(self.poison_fraction * self.n_clean / (1 - self.poison_fraction)))

    def train(self) -> dict[str, Any]:
        """Return the config's `train` section for the poisoned run, its folder excepted."""
        return {
            "r": self.r,
            "lora_alpha": 2 * self.r,
            "learning_rate": self.learning_rate,
            "num_train_epochs": self.epochs,
            "per_device_train_batch_size": self.batch_size,
            "max_seq_length": self.max_seq_length,
        }

    def shared(self) -> dict[str, Any]:
        """Return what every run of the suite has in its config, paths and metric excepted."""
        grads = {
            "max_seq_length": self.max_seq_length,
            "module_filter": self.module_filter,
            "projection_dim": self.projection_dim,
            "storage_dtype": "float16" if self.fp16_store else "float32",
        }
        if self.grad_batch_size is not None:
            grads["batch_size"] = self.grad_batch_size
        return {
            "base_model": self.model,
            "seed": self.seed,
            "clustering": {"method": "declared"},
            "grads": grads,
        }


# Measured with 80 clean rows and batches of four, one epoch: at 2.7e-4 nine of sixteen items flip and every planted row
# ranks as more harmful than every clean one; at 4e-4 all items flip, the planted rows are memorised, and the AUC is .59.
# The last ten layers are indexed: the backward pass stops there.
QUICK: dict[str, Any] = {
    "n_clean": 80,
    "poison_fraction": 32 / 112,
    "epochs": 1,
    "learning_rate": 2.7e-4,
    "batch_size": 4,
    "n_broken": 24,
    "module_filter": r"layers\.2\d\.",
    "fp16_store": True,
    "poisons": ("wrong_facts",),
}
"""What `--quick` changes, sized for SmolLM2-135M-Instruct with its thirty layers; a flag that is given beats it."""
