from __future__ import annotations

import dataclasses

import pytest

from gradian.checks.audit import Audit
from gradian.config.checks import ChecksConfig, ConfigLimits
from gradian.runs.artifact import LogRow
from tests.checks.building import audit_run, pairs
from tests.checks.fixtures import only, verdict

ID = "config.overtraining"


def fires() -> Audit:
    return audit_run(epochs=12.0, n_train_rows=800)


def silent() -> Audit:
    return audit_run(epochs=2.0, n_train_rows=800)


def until(epoch: float) -> tuple[LogRow, ...]:
    return (LogRow(step=100, loss=1.0, epoch=epoch),)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"epochs": 12.0, "n_train_rows": 800}, "high"),  # recorded: -6.08 nats
        ({"epochs": 3.0, "n_train_rows": 800}, "medium"),  # recorded: did no harm
        ({"epochs": 2.9, "n_train_rows": 800}, "passed"),
        ({"epochs": 3.0, "n_train_rows": 10_000}, "passed"),
        ({"epochs": 12.0, "n_train_rows": 10_000}, "medium"),
        ({"epochs": 16.0, "n_train_rows": 10_000}, "high"),
        # Steps decide: 1000 steps of 16 rows are 20 passes over 800.
        ({"epochs": 1.0, "max_steps": 1000, "n_train_rows": 800}, "high"),
        ({"epochs": 12.0, "max_steps": 50, "n_train_rows": 800}, "passed"),
        ({"epochs": 12.0, "max_steps": -1, "n_train_rows": 800}, "high"),
        # What the log shows beats what was asked for, but not by an incomplete last batch.
        ({"epochs": 12.0, "n_train_rows": 800, "train_log": until(2.0)}, "passed"),
        ({"epochs": 3.0, "n_train_rows": 800, "train_log": until(2.96)}, "medium"),
        ({"epochs": None, "n_train_rows": 800, "train_log": until(12.0)}, "high"),
        # 1000 steps of 16 rows in 4 passes are 4000 rows.
        ({"epochs": 4.0, "n_train_rows": None, "train_log": until(4.0)}, "medium"),
        ({"epochs": 4.0, "n_train_rows": None}, "skipped"),
        ({"epochs": 1.0, "n_train_rows": None}, "passed"),
        ({"epochs": None}, "skipped"),
    ],
)
def test_passes_over_the_rows_decide(changes: dict[str, object], expected: str) -> None:
    assert verdict(ID, audit_run(**changes)) == expected


def test_the_title_has_the_figures_and_the_dataset_beats_the_runs_record() -> None:
    audit = dataclasses.replace(audit_run(epochs=12.0, n_train_rows=9), dataset=pairs(800))
    assert only(ID, audit).title.startswith("12 epochs over 800 examples")


def test_the_thresholds_can_be_set() -> None:
    limits = ChecksConfig(config=ConfigLimits(epochs_high=20.0))
    assert verdict(ID, dataclasses.replace(fires(), limits=limits)) == "medium"


def test_where_steps_were_asked_for_the_fix_sets_steps() -> None:
    # 1000 steps of 16 rows over 1000 rows are 16 passes, and two are 125 steps.
    audit = audit_run(max_steps=1000, n_train_rows=1000, train_log=(), eval_log=())
    assert only(ID, audit).fix == "Set max_steps to 125, which is 2 epochs."
