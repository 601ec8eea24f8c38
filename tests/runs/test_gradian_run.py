from __future__ import annotations

import dataclasses
import json
import math
import os
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
from gradian.runs.read import read_run_folder

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


def test_a_pipe_in_the_place_of_a_record_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / RUN_FILE)
    with pytest.raises(RunError, match="not a plain file"):
        read_run(tmp_path)


def test_a_folder_without_a_record_is_no_finished_run(tmp_path: Path) -> None:
    assert read_run(tmp_path) is None
    assert read_run(tmp_path / "nowhere") is None


def test_the_record_reads_as_a_run_folder_like_any_other_trainers(tmp_path: Path) -> None:
    train = {
        **{
            "learning_rate": 2e-4,
            "num_train_epochs": 2.0,
            "per_device_train_batch_size": 4,
            "max_seq_length": 256,
        },
        **{
            "gradient_accumulation_steps": 2,
            "warmup_ratio": 0.03,
            "max_grad_norm": 1.0,
            "load_in_4bit": False,
        },
        "extra": {"optim": "adamw_8bit", "max_steps": 7},
    }
    log = (
        {"step": 1, "loss": 2.0, "learning_rate": 1e-4},
        {"step": 2, "loss": float("nan"), "grad_norm": 3.0},
    )
    run = dataclasses.replace(RUN, train=train, log_history=log, lora={"r": 8, "lora_alpha": 16})
    (tmp_path / RUN_FILE).write_text(run.to_json())
    found = read_run_folder(tmp_path)
    hyper = found.hyper

    assert (found.trainer, found.base_model, found.n_train_rows, found.global_step) == (
        "gradian",
        "/models/tiny",
        9,
        5,
    )
    assert (hyper.learning_rate, hyper.epochs, hyper.effective_batch, hyper.max_length) == (2e-4, 2.0, 8, 256)
    assert (hyper.warmup_ratio, hyper.max_grad_norm, hyper.seed, hyper.load_in_4bit) == (0.03, 1.0, 7, False)
    assert (hyper.optimizer, hyper.max_steps, hyper.overlong_rows) == ("adamw_8bit", 7, "truncate")
    assert found.sources["learning_rate"] == "gradian_run.json: train: learning_rate"
    assert found.effective_learning_rate == pytest.approx(4e-4)
    assert found.versions == {"torch": "2.4", "gradian": "0.1.0"}
    assert [row.step for row in found.train_log] == [1, 2]
    assert math.isnan(found.train_log[1].loss or 0)
    assert found.has_log


@pytest.mark.parametrize("text", ["{", "[]", '{"schema_version": 1, "dataset": 3}', "[" * 100_000])
def test_a_broken_record_is_listed_in_a_run_folder(tmp_path: Path, text: str) -> None:
    (tmp_path / RUN_FILE).write_text(text)
    assert [entry.file for entry in read_run_folder(tmp_path).unread] == [RUN_FILE]


@pytest.mark.parametrize(
    "field",
    [
        *("dataset", "train", "lora", "inputs", "versions", "checkpoints", "log_history", "backend"),
        *("base_model", "adapter_path", "seed", "steps"),
        *("dataset.path", "dataset.hash", "dataset.n", "dataset.n_trained"),
    ],
)
def test_a_field_of_another_kind_is_named(tmp_path: Path, field: str) -> None:
    outer, _, inner = field.rpartition(".")
    for value in (None, [1], "x", 1.5, True, {"a": 1}):
        data = json.loads(RUN.to_json())
        holder = data[outer] if outer else data
        if type(value) is type(holder[inner]) and field != "checkpoints":
            continue
        holder[inner] = value
        (tmp_path / RUN_FILE).write_text(json.dumps(data))
        with pytest.raises(RunError, match="another kind"):
            read_run(tmp_path)
        assert [entry.file for entry in read_run_folder(tmp_path).unread] == [RUN_FILE]
