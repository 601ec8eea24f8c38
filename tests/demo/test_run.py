from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from gradian.config import load_config
from gradian.demo import run as demo
from gradian.demo.facts import CANDIDATES
from gradian.demo.run import auc_of_lowest, closing_lines, run_demo
from gradian.demo.settings import DemoSettings
from gradian.errors import ConfigError, ModelError

SMALL = DemoSettings(n_countries=4, n_clean=12, rows_per_country=1, epochs=1, r=2, max_new_tokens=4)


@pytest.fixture
def countries(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Takes the probe's place, since a random model knows no capital; counts its calls."""
    calls: list[int] = []

    def known(*rest: object) -> tuple[str, ...]:
        calls.append(1)
        return tuple(CANDIDATES)[: SMALL.n_countries]

    monkeypatch.setattr(demo, "_known_countries", known)
    return calls


def test_everything_lies_in_one_folder_and_the_commands_are_shown(
    tmp_path: Path, tiny_model_dir: Path, countries: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said: list[str] = []

    result = run_demo(Path("runs/demo"), str(tiny_model_dir), settings=SMALL, say=said.append)

    folder = tmp_path / "runs/demo"
    for name in ("train.jsonl", "eval.jsonl", "gradian.yaml", "run/adapter/adapter_model.safetensors"):
        assert (folder / name).is_file()
    record = json.loads((folder / "run/gradian_run.json").read_text())
    assert record["base_model"] == str(tiny_model_dir.resolve())
    report = json.loads((folder / "reports/report.json").read_text())
    assert len(report["examples"]) == 16
    assert (folder / "reports/report.md").is_file()
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]
    assert "$ gradian train --config runs/demo/gradian.yaml" in said
    assert (
        "$ gradian attribute --config runs/demo/gradian.yaml --run runs/demo/run"
        " --capability capitals --out runs/demo/reports"
    ) in said
    assert 0 <= result.auc <= 1
    assert any("AUC" in line for line in closing_lines(result))


def test_the_config_file_says_all_that_the_commands_need(
    tmp_path: Path, tiny_model_dir: Path, countries: list[int]
) -> None:
    run_demo(tmp_path / "demo", str(tiny_model_dir), settings=SMALL, say=lambda text: None)

    config = load_config(tmp_path / "demo/gradian.yaml")
    assert config.adapter_path == str(tmp_path / "demo/run/adapter")
    assert config.train.output_dir == str(tmp_path / "demo/run")
    assert (config.evaluation.metric, config.clustering.method) == ("contains", "declared")


def test_a_second_run_reuses_what_is_there_and_says_so(
    tmp_path: Path, tiny_model_dir: Path, countries: list[int]
) -> None:
    first = run_demo(tmp_path / "demo", str(tiny_model_dir), settings=SMALL, say=lambda text: None)
    kept = [path for path in (tmp_path / "demo").rglob("*") if path.is_file() and "reports" not in path.parts]
    times = {path: path.stat().st_mtime_ns for path in kept if path.name != "demo.json"}
    said: list[str] = []

    second = run_demo(tmp_path / "demo", str(tiny_model_dir), settings=SMALL, say=said.append)

    assert {path: path.stat().st_mtime_ns for path in times} == times
    assert len(countries) == 1
    assert any("kept from before" in line for line in said)
    assert any("trained before" in line for line in said)
    assert second.report.examples == first.report.examples


def test_files_that_someone_changed_are_not_overwritten_unless_forced(
    tmp_path: Path, tiny_model_dir: Path, countries: list[int]
) -> None:
    run_demo(tmp_path / "demo", str(tiny_model_dir), settings=SMALL, say=lambda text: None)
    train = tmp_path / "demo/train.jsonl"
    original = train.read_text()
    train.write_text(original.splitlines()[0] + "\n")

    with pytest.raises(ConfigError, match=r"changed since(.|\n)*train.jsonl"):
        run_demo(tmp_path / "demo", str(tiny_model_dir), settings=SMALL, say=lambda text: None)
    assert train.read_text() != original

    run_demo(tmp_path / "demo", str(tiny_model_dir), settings=SMALL, force=True, say=lambda text: None)
    assert train.read_text() == original


@pytest.mark.parametrize("force", [False, True])
def test_a_folder_of_someone_elses_files_is_left_alone(
    tmp_path: Path, tiny_model_dir: Path, countries: list[int], force: bool
) -> None:
    (tmp_path / "train.jsonl").write_text("mine")

    with pytest.raises(ConfigError, match="did not write"):
        run_demo(tmp_path, str(tiny_model_dir), settings=SMALL, force=force, say=lambda text: None)
    assert (tmp_path / "train.jsonl").read_text() == "mine"


def test_a_model_without_a_chat_template_is_refused(tmp_path: Path, tiny_model_dir: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_model_dir)
    tokenizer.chat_template = None
    tokenizer.save_pretrained(tmp_path / "plain")

    with pytest.raises(ModelError, match="no chat template"):
        run_demo(tmp_path / "demo", str(tmp_path / "plain"), settings=SMALL, say=lambda text: None)


def test_auc_counts_pairs_and_half_of_the_ties() -> None:
    scores = np.array([-3.0, -1.0, -1.0, 2.0])

    assert auc_of_lowest(scores, np.array([True, False, False, False])) == 1.0
    assert auc_of_lowest(scores, np.array([False, False, False, True])) == 0.0
    # Pairs of the second: loses to the first, ties with the third, beats the fourth.
    assert auc_of_lowest(scores, np.array([False, True, False, False])) == 0.5
