from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import run_gpu_suite
from run_gpu_suite import Suite, earlier, main, parse, recorded, settings_of, worst
from suite_settings import DEFAULT_MODEL, SuiteSettings
from verdicts import Status, Verdict

from gradian.config import Config
from gradian.demo.facts import CANDIDATES


@pytest.fixture
def countries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes the probe's place, since a random model knows no capital."""
    monkeypatch.setattr(Suite, "countries", tuple(CANDIDATES)[:4])


def options(model: Path, out: Path) -> list[str]:
    tiny = ["--n-clean", "8", "--n-broken", "8", "--epochs", "1", "--grad-batch-size", "4", "--fp16-store"]
    return [
        "--quick",
        "--model",
        str(model),
        "--out",
        str(out),
        *tiny,
        "--projection-dim",
        "32",
        "--module-filter",
        ".",
    ]


@pytest.mark.slow
def test_the_whole_suite_runs_and_leaves_verdicts_and_reports(
    tmp_path: Path, tiny_model_dir: Path, countries: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--all", *options(tiny_model_dir, tmp_path)]) in (0, 1)
    verdicts = json.loads((tmp_path / "verdict.json").read_text())
    experiments = verdicts["experiments"]
    assert list(experiments) == ["A", "B", "C", "D"]
    # A random model answers nothing, so nothing is lost, and nothing may be claimed.
    assert experiments["A"]["status"] == "INCONCLUSIVE"
    assert experiments["C"]["status"] == "INCONCLUSIVE"
    assert experiments["D"]["status"] == "SKIPPED"
    assert experiments["D"]["reasons"]
    scenarios = experiments["B"]["scenarios"]
    assert len(scenarios) == 6
    assert {name: scenario["missing"] for name, scenario in scenarios.items() if scenario["missing"]} == {}
    for name in ("A-wrong_facts", *(f"B-{name}" for name in scenarios)):
        assert (tmp_path / name / "report.md").is_file()
        assert (tmp_path / name / "report.json").is_file()
        assert not (tmp_path / name / "cache").exists()
    assert verdicts["settings"]["model"] == tiny_model_dir.name
    assert "No hub is reached" in verdicts["data"]
    said = capsys.readouterr().out
    assert "A: INCONCLUSIVE" in said
    assert "D: SKIPPED" in said

    trained = (tmp_path / "A-wrong_facts" / "run" / "gradian_run.json").stat().st_mtime_ns
    assert main(["--experiment", "A", *options(tiny_model_dir, tmp_path)]) == 0
    again = json.loads((tmp_path / "verdict.json").read_text())["experiments"]
    assert again["B"] == experiments["B"]
    assert (tmp_path / "A-wrong_facts" / "run" / "gradian_run.json").stat().st_mtime_ns == trained


def test_a_users_error_has_its_own_exit_code(
    tmp_path: Path, countries: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--experiment", "A", *options(tmp_path / "nowhere", tmp_path / "out")]) == 2
    assert "error:" in capsys.readouterr().err


@pytest.mark.parametrize("status", list(Status))
def test_the_exit_code_tells_a_failure_and_only_a_failure(
    status: Status, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_gpu_suite, "EXPERIMENTS", {"A": lambda suite: Verdict(status, ("why",))})
    code = main(["--experiment", "A", "--model", "somewhere", "--out", str(tmp_path)])
    assert code == (1 if status is Status.FAIL else 0)


def test_flags_beat_quick_and_quick_beats_the_defaults() -> None:
    quick = settings_of(parse(["--all", "--quick", "--model", "m", "--epochs", "2"]))
    assert (quick.epochs, quick.n_clean, quick.model) == (2.0, 80, "m")
    full = settings_of(parse(["--all"]))
    assert full == SuiteSettings()
    assert (full.model, full.n_clean, full.epochs, full.max_seq_length) == (DEFAULT_MODEL, 800, 3, 512)


@pytest.mark.parametrize(
    ("flags", "path", "value"),
    [
        (["--module-filter", "down_proj"], "grads.module_filter", "down_proj"),
        (["--fp16-store"], "grads.storage_dtype", "float16"),
        (["--projection-dim", "2048"], "grads.projection_dim", 2048),
        (["--grad-batch-size", "2"], "grads.batch_size", 2),
        (["--max-seq-length", "1024"], "grads.max_seq_length", 1024),
        (["--seed", "7"], "seed", 7),
        (["--epochs", "2"], "train.num_train_epochs", 2.0),
        (["--learning-rate", "3e-4"], "train.learning_rate", 3e-4),
        (["--max-seq-length", "1024"], "train.max_seq_length", 1024),
    ],
)
def test_a_flag_reaches_the_setting_it_names(flags: list[str], path: str, value: Any) -> None:
    settings = settings_of(parse(["--all", *flags]))
    found: Any = Config.model_validate({**settings.shared(), "train": settings.train()})
    for key in path.split("."):
        found = getattr(found, key)
    assert found == value


def test_verdicts_of_other_settings_are_not_kept(tmp_path: Path) -> None:
    settings = SuiteSettings(model=str(tmp_path))
    file = tmp_path / "verdict.json"
    experiments = {"A": {"status": "PASS"}}
    file.write_text(json.dumps({"settings": recorded(settings), "experiments": experiments}))
    assert earlier(file, recorded(settings)) == experiments
    assert earlier(file, recorded(replace(settings, epochs=9))) == {}
    file.write_text("{")
    assert earlier(file, recorded(settings)) == {}
    assert recorded(settings)["model"] == tmp_path.name


@pytest.mark.parametrize(
    ("first", "second", "status"),
    [("PASS", "FAIL", "FAIL"), ("PASS", "INCONCLUSIVE", "INCONCLUSIVE"), ("PASS", "PASS", "PASS")],
)
def test_several_poisons_are_worth_their_worst(first: str, second: str, status: str) -> None:
    verdict = worst({"a": Verdict(Status(first), ("x",)), "b": Verdict(Status(second), ("y",))})
    assert verdict.status is Status(status)
    assert verdict.reasons == ("a: x", "b: y")
