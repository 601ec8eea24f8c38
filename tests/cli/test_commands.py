"""What `index`, `attribute`, `train` and `show-index` hand on, and how they refuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import gradian.api
from gradian.cli.main import app
from gradian.config import Config
from gradian.store.writer import open_writer
from gradian.types import BlockSpec

runner = CliRunner()


@pytest.fixture
def index_path(tmp_path: Path) -> Path:
    blocks = (BlockSpec("layer", ((3,),), 0),)
    with open_writer(tmp_path, {"seed": 1234}, blocks, n=2, dtype="float32", chunk_size=2) as writer:
        with writer.chunk(0) as chunk:
            chunk.write_block(0, np.arange(2), np.ones((2, 3), dtype=np.float32))
            chunk.write_examples(np.arange(2), np.ones(2), np.ones(2, dtype=np.int64))
        return writer.finish({}).path


def test_show_index_prints_the_manifest_as_json(index_path: Path) -> None:
    result = runner.invoke(app, ["show-index", str(index_path)])
    assert result.exit_code == 0, result.stderr
    manifest = json.loads(result.stdout)
    assert manifest["id"] == index_path.name
    assert manifest["inputs"] == {"seed": 1234}


def test_show_index_verify_finds_a_flipped_byte_that_the_headers_do_not_show(index_path: Path) -> None:
    (chunk,) = (index_path / "chunks").iterdir()
    data = bytearray(chunk.read_bytes())
    data[-1] ^= 1
    chunk.write_bytes(data)
    assert runner.invoke(app, ["show-index", str(index_path)]).exit_code == 0
    result = runner.invoke(app, ["show-index", str(index_path), "--verify"])
    assert result.exit_code == 2
    assert chunk.name in result.stderr


def test_show_index_of_a_folder_that_is_no_index_is_a_users_error(tmp_path: Path) -> None:
    result = runner.invoke(app, ["show-index", str(tmp_path)])
    assert result.exit_code == 2
    assert str(tmp_path) in result.stderr


@pytest.mark.parametrize(
    ("arguments", "flag"),
    [
        (["attribute", "-m", "model", "-d", "train.jsonl"], "--adapter"),
        (["attribute", "-a", "adapter", "-d", "train.jsonl"], "--base-model"),
        (["attribute", "-a", "adapter", "-m", "model"], "--dataset"),
        (["index", "-m", "model", "-d", "train.jsonl"], "--adapter"),
        (["index", "-a", "adapter", "-d", "train.jsonl"], "--base-model"),
        (["index", "-a", "adapter", "-m", "model"], "--dataset"),
    ],
)
def test_a_missing_input_exits_with_2_and_names_its_flag(arguments: list[str], flag: str) -> None:
    result = runner.invoke(app, arguments)
    assert result.exit_code == 2
    assert flag in result.stderr


@pytest.mark.parametrize("command", ["attribute", "index", "train", "verify"])
def test_a_config_that_is_not_there_exits_with_2(command: str) -> None:
    needed = ["--run", "run", "--out", "out"] if command == "verify" else []
    result = runner.invoke(app, [command, "--config", "nowhere.yaml", *needed])
    assert result.exit_code == 2
    assert "nowhere.yaml" in result.stderr


class Called(Exception):
    """Carries what the API was called with out of a command."""

    def __init__(self, config: Any, options: dict[str, Any]) -> None:
        self.config = config
        self.options = options


def call_of(monkeypatch: pytest.MonkeyPatch, verb: str, arguments: list[str]) -> Called:
    def record(config: Config | None, **options: Any) -> None:
        raise Called(config, options)

    monkeypatch.setattr(gradian.api, verb, record)
    error = runner.invoke(app, arguments).exception
    assert isinstance(error, Called), error
    return error


CONFIG = """
base_model: from-file
adapter: from-file
dataset: from-file.jsonl
engine: {name: tracin}
train: {output_dir: from-file, backend: hf}
"""


@pytest.fixture
def config_file(tmp_path: Path) -> str:
    file = tmp_path / "gradian.yaml"
    file.write_text(CONFIG, encoding="utf-8")
    return str(file)


def test_attribute_lays_its_flags_over_the_config(monkeypatch: pytest.MonkeyPatch, config_file: str) -> None:
    short = [
        "-c",
        config_file,
        "-d",
        "d.jsonl",
        "-e",
        "e.jsonl",
        "-m",
        "m",
        "-a",
        "a",
        "-r",
        "run",
        "-o",
        "out",
    ]
    called = call_of(
        monkeypatch,
        "analyze",
        ["attribute", *short, "--capability", "facts", "--engine", "datainf", "--force"],
    )
    config = called.config
    assert (config.dataset, config.eval_dataset, config.base_model) == ("d.jsonl", "e.jsonl", "m")
    assert (config.adapter_path, config.run_dir) == ("a", "run")
    assert called.options["capability"] == "facts"
    assert called.options["engine"] == "datainf"
    assert called.options["cross_check"] == "graddot"
    assert called.options["out"] == Path("out")
    assert called.options["force"] is True


def test_attribute_without_flags_leaves_the_config_alone(
    monkeypatch: pytest.MonkeyPatch, config_file: str
) -> None:
    called = call_of(monkeypatch, "analyze", ["attribute", "--config", config_file, "--cross-check", "none"])
    assert called.config.base_model == "from-file"
    assert called.config.engine.name == "tracin"
    assert called.options["engine"] is None
    assert called.options["capability"] == "capability"
    assert called.options["cross_check"] is None
    assert called.options["force"] is False


def test_verify_hands_on_its_flags(monkeypatch: pytest.MonkeyPatch, config_file: str) -> None:
    named = ["-r", "run", "-o", "out", "-d", "d.jsonl", "-e", "e.jsonl", "-m", "m", "--capability", "facts"]
    called = call_of(monkeypatch, "verify", ["verify", *named, "--report", "r.json", "--control"])
    assert called.config is None
    options = called.options
    assert (options["run"], options["out"], options["report"]) == (Path("run"), Path("out"), Path("r.json"))
    assert (options["dataset"], options["eval_dataset"]) == (Path("d.jsonl"), Path("e.jsonl"))
    assert (options["base_model"], options["capability"], options["control"]) == ("m", "facts", True)
    called = call_of(monkeypatch, "verify", ["verify", "-c", config_file, "-r", "run", "-o", "out"])
    assert called.config.engine.name == "tracin"
    assert called.options["control"] is False


@pytest.mark.parametrize("missing", ["--run", "--out"])
def test_verify_needs_a_run_and_a_place(missing: str) -> None:
    given = {"--run": "run", "--out": "out"}
    arguments = [word for flag, value in given.items() if flag != missing for word in (flag, value)]
    result = runner.invoke(app, ["verify", *arguments])
    assert result.exit_code == 2
    assert missing in result.stderr


def test_index_hands_on_its_flags(monkeypatch: pytest.MonkeyPatch, config_file: str) -> None:
    called = call_of(monkeypatch, "build_index_for", ["index", "-c", config_file, "-m", "m", "--force"])
    assert (called.config.base_model, called.config.dataset) == ("m", "from-file.jsonl")
    assert called.options["force"] is True


def test_train_hands_on_its_flags(monkeypatch: pytest.MonkeyPatch, config_file: str) -> None:
    called = call_of(
        monkeypatch, "train", ["train", "-c", config_file, "-b", "trl", "-d", "d.jsonl", "-o", "out"]
    )
    assert called.config.train.output_dir == "out"
    assert called.config.dataset == "d.jsonl"
    assert called.options["backend"] == "trl"


def test_train_without_flags_leaves_the_config_alone(
    monkeypatch: pytest.MonkeyPatch, config_file: str
) -> None:
    called = call_of(monkeypatch, "train", ["train", "--config", config_file])
    assert called.config.train.output_dir == "from-file"
    assert called.options["backend"] is None
