"""Every setting of the demo, with the reasons."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class DemoSettings:
    """What decides the demo's files and its fine-tune.

    Attributes:
        seed: of the shuffle and of the run.
        n_countries: eval items. With eight, one flipped answer moves the metric by 0.125 and the interval is too
            coarse to gate on; sixteen halves that.
        n_clean: clean rows in the training file, taken evenly from all kinds of task.
        rows_per_country: wrong rows of each country, each in another phrasing.
        wrong_cities: the answers of the planted rows: real capitals of countries outside the eval set. Were they the
            right answers of other eval items (a permutation), each planted row would hurt one item and help another,
            and the average over the items would tell little (measured: AUC .5 after one epoch).
        learning_rate: peak rate; alpha / r = 2 doubles it.
        epochs: passes over the data. The poison has just taken: after many more the planted rows are memorised, their
            gradients shrink, and raw scores are drowned by a few hard clean rows.
        batch_size: rows in one training batch.
        r: LoRA rank, on every linear layer but the head.
        max_new_tokens: longest answer. A capital needs less, but the base model answers in a sentence.
    """

    seed: int = 1234
    n_countries: int = 16
    n_clean: int = 240
    rows_per_country: int = 2
    wrong_cities: tuple[str, ...] = ("Madrid",)
    learning_rate: float = 5e-4
    epochs: float = 2
    batch_size: int = 8
    r: int = 8
    max_new_tokens: int = 24

    def config(self) -> dict[str, Any]:
        """Return the part of the config file that does not name a path."""
        return {
            "seed": self.seed,
            "evaluation": {"metric": "contains", "max_new_tokens": self.max_new_tokens},
            "clustering": {"method": "declared"},
            "train": {
                "r": self.r,
                "lora_alpha": 2 * self.r,
                "learning_rate": self.learning_rate,
                "num_train_epochs": self.epochs,
                "per_device_train_batch_size": self.batch_size,
            },
        }


DEMO = DemoSettings()
