from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from gradian.errors import RunError
from gradian.runs.gradian_run import (
    RUN_FILE,
    SCHEMA_VERSION,
    GradianRun,
    RunCheckpoint,
    RunDataset,
    read_run,
)

RUN = GradianRun(
    backend="hf",
    base_model="/models/tiny",
    adapter_path="/runs/a/adapter",
    dataset=RunDataset("/data/train.jsonl", "ab" * 32, 10, 9),
    seed=7,
    train={"learning_rate": 2e-4},
    lora={"r": 8},
    steps=5,
    inputs={"seed": 7},
    versions={"torch": "2.4"},
    wall_time_s=1.5,
    gradian_version="0.1.0",
    checkpoints=(RunCheckpoint("checkpoint-5", 5, 1.0, 1e-4),),
    log_history=({"step": 1, "loss": 2.0},),
)


def test_a_record_survives_being_written_and_read() -> None:
    assert GradianRun.from_json(RUN.to_json()) == RUN


def test_the_schema_version_comes_first_so_that_a_reader_sees_it_at_once() -> None:
    assert next(iter(json.loads(RUN.to_json()))) == "schema_version"


def test_a_loss_of_nan_is_written_as_null() -> None:
    run = dataclasses.replace(RUN, log_history=({"loss": float("nan"), "grad_norm": float("inf")},))

    assert json.loads(run.to_json())["log_history"] == [{"loss": None, "grad_norm": None}]


def test_keys_of_a_later_version_are_ignored() -> None:
    data = json.loads(RUN.to_json())
    data["colour"] = "blue"
    data["dataset"]["colour"] = "blue"

    assert GradianRun.from_json(json.dumps(data)) == RUN


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "not JSON"),
        ("[]", "schema_version None"),
        ('{"schema_version": 99}', "schema_version 99"),
        (f'{{"schema_version": {SCHEMA_VERSION}}}', "lacks a field"),
    ],
)
def test_another_file_is_refused_by_name(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / RUN_FILE).write_text(text)

    with pytest.raises(RunError, match=says) as caught:
        read_run(tmp_path)
    assert str(tmp_path / RUN_FILE) in str(caught.value)


def test_a_folder_without_a_record_is_no_finished_run(tmp_path: Path) -> None:
    assert read_run(tmp_path) is None
    assert read_run(tmp_path / "nowhere") is None
