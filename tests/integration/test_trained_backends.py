"""From `gradian train` to a report on the command line, for each backend that runs on a CPU."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gradian.cli.main import app

ROWS = [{"prompt": f"say {word}", "completion": word * 2} for word in ("ab", "cde", "f", "gh", "ijk", "l")]


def gradian(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.mark.parametrize(
    "backend",
    [
        "hf",
        pytest.param(
            "trl",
            marks=pytest.mark.skipif(
                importlib.util.find_spec("trl") is None,
                reason="trl is not installed; the dev extra brings it",
            ),
        ),
    ],
)
def test_diagnose_and_attribute_read_what_train_wrote(
    backend: str, tmp_path: Path, tiny_model_dir: Path
) -> None:
    data, config, run = tmp_path / "train.jsonl", tmp_path / "gradian.yaml", tmp_path / "run"
    data.write_text("".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8")
    config.write_text(
        f"base_model: {tiny_model_dir}\ndataset: {data}\ncache_dir: {tmp_path / 'cache'}\n"
        "grads: {max_seq_length: 64}\n"
        "train: {r: 2, learning_rate: 0.1, num_train_epochs: 20, per_device_train_batch_size: 6, max_seq_length: 64}\n",
        encoding="utf-8",
    )

    trained = gradian("train", "--config", config, "--backend", backend, "--out", run)
    assert trained.exit_code == 0, trained.stderr
    assert trained.stdout.split() == [str(run)]

    told = ("--dataset", data, "--run", run, "--base-model", tiny_model_dir)
    diagnosed = gradian("diagnose", *told, "--out", tmp_path / "audit")
    assert diagnosed.exit_code == 0, diagnosed.stderr
    audit = json.loads((tmp_path / "audit" / "audit.json").read_text())
    found = {finding["id"] for finding in audit["findings"]}
    assert {"config.lr_too_high", "config.overtraining"} <= found
    # The record says what the trainer ran with, so neither check is left out for want of it.
    skipped = {entry["id"] for entry in audit["skipped"]}
    assert not {"config.fp16_precision", "config.max_seq_length_vs_data"} & skipped

    attributed = gradian(
        "attribute", "--config", config, "--adapter", run / "adapter", "--run", run, "--out", tmp_path / "out"
    )
    assert attributed.exit_code == 0, attributed.stderr
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert [example["row"] for example in report["examples"]] == list(range(len(ROWS)))
    assert any(example["score"] != 0 for example in report["examples"])


def test_a_backend_of_the_flag_alone_is_refused_in_the_config_file(tmp_path: Path) -> None:
    config = tmp_path / "gradian.yaml"
    config.write_text("train: {backend: trl}\n", encoding="utf-8")

    refused = gradian("train", "--config", config)

    assert refused.exit_code == 2
    assert "train.backend" in refused.stderr
