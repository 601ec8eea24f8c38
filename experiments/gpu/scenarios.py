"""Experiment B's broken set-ups: good rows, one fault each, and the checks that must name it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from instruction_rows import instruction_rows
from suite_settings import SuiteSettings

from gradian.demo.dataset import Row, eval_rows

CLEAN = "clean"
LEAKED = "leaked"
HEALTHY: Mapping[str, Any] = {"learning_rate": 1e-4, "num_train_epochs": 1.0}
"""A sane fine-tune, of which each scenario breaks one thing."""


@dataclass(frozen=True)
class Scenario:
    """One fault.

    Attributes:
        name: the capability is called `badconfig_<name>`.
        train: settings laid over the healthy ones.
        must_fire: ids of the checks that must be in the report.
        contaminated: whether the eval items are in the training file, with their right answers.
    """

    name: str
    train: Mapping[str, Any]
    must_fire: tuple[str, ...]
    contaminated: bool = field(default=False)


SCENARIOS = (
    # Ten times the config's default, twenty times the healthy rate here.
    Scenario("lr_10x", {"learning_rate": 2e-3}, ("config.lr_too_high",)),
    Scenario("too_many_epochs", {"num_train_epochs": 12.0}, ("config.overtraining",)),
    Scenario(
        "tiny_batch_high_lr",
        {"learning_rate": 5e-4, "per_device_train_batch_size": 1, "gradient_accumulation_steps": 1},
        ("config.lr_too_high", "config.small_effective_batch"),
    ),
    Scenario(
        "truncating_seq_len",
        {"max_seq_length": 48},
        ("data.completion_truncated", "config.max_seq_length_vs_data"),
    ),
    Scenario("attention_only", {"target_modules": ["q_proj", "v_proj"]}, ("config.attention_only_targets",)),
    Scenario("contaminated_eval", {}, ("data.train_eval_contamination",), contaminated=True),
)


def train_settings(scenario: Scenario, settings: SuiteSettings) -> dict[str, Any]:
    """Return the config's `train` section of a scenario, its folder excepted."""
    return {**settings.train(), **HEALTHY, **scenario.train}


@dataclass(frozen=True)
class ScenarioRows:
    """Data of a scenario.

    Attributes:
        train: the training file: good rows, in one cluster as in the recorded runs. A fault of the set-up then shows
            as one cluster with everything.
        eval: the eval set.
        kinds: kind of task of each training row, finer than the cluster.
    """

    train: tuple[Row, ...]
    eval: tuple[Row, ...]
    kinds: tuple[str, ...]


def scenario_rows(scenario: Scenario, settings: SuiteSettings, countries: Sequence[str]) -> ScenarioRows:
    """Return the rows of a scenario."""
    evals = tuple(eval_rows(countries))
    rows = instruction_rows(settings.n_broken, settings.seed, settings.alpaca)
    if scenario.contaminated:
        rows = [*rows, *({**row, "cluster_id": LEAKED} for row in evals)]
    return ScenarioRows(
        train=tuple({**row, "cluster_id": CLEAN} for row in rows),
        eval=evals,
        kinds=tuple(row["cluster_id"] for row in rows),
    )
