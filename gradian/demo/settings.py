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
        wrong_cities: the answers of the planted rows: real capitals of countries outside the eval set. One city, as when
            a bad join fills a column with one value. With several, a row that teaches Vienna pushes the model away from
            Madrid, which is what it says: it scores as helpful on average (measured with three cities: raw AUC .65).
            Were they the right answers of other eval items, each row would hurt one item and help another (.53).
        learning_rate: peak rate; alpha / r = 2 doubles it. Measured over one epoch: 1.5e-4 flips nothing, 4e-4 flips 3
            of 16 items (raw AUC .999), 4.4e-4 flips 6 (1.000), 5e-4 flips 15 (.903).
        epochs: passes over the data. The poison has just taken. Later the planted rows are memorised: at a second epoch
            of 5e-4 their gradients are ten times smaller than the clean rows', and the ranking is lost (AUC .49).
        batch_size: rows in one training batch.
        r: LoRA rank, on every linear layer but the head.
        max_new_tokens: longest answer. A capital needs less, but the base model answers in a sentence.
    """

    seed: int = 1234
    n_countries: int = 16
    n_clean: int = 240
    rows_per_country: int = 2
    wrong_cities: tuple[str, ...] = ("Madrid",)
    learning_rate: float = 4.4e-4
    epochs: float = 1
    batch_size: int = 8
    r: int = 8
    max_new_tokens: int = 16

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
