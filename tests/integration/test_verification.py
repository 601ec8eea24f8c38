"""`gradian verify` on a tiny model that `gradian train` really broke."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path

import pytest

import gradian
from gradian import api
from gradian.config import Config, config_from_mapping
from gradian.errors import ConfigError, NothingAccusedError, RunError
from gradian.model.backends.base import run_training
from gradian.report.accused import Accused
from gradian.report.model import Report
from gradian.report.verification.model import Verification
from gradian.runs.gradian_run import read_run
from gradian.verification import control_rows
from tests.integration.poisoned import LETTERS, PoisonedRun

RUNS = Path(__file__).resolve().parents[1] / "fixtures" / "runs"
TRAIN = {
    "r": 4,
    "lora_alpha": 8,
    "learning_rate": 5e-3,
    "num_train_epochs": 40,
    "per_device_train_batch_size": 20,
}


def settings(poisoned: PoisonedRun, run: Path, cache: Path) -> Config:
    config = poisoned.config(cache, train={**TRAIN, "output_dir": str(run)})
    return config.model_copy(update={"adapter_path": str(run / "adapter")})


@pytest.fixture(scope="module")
def run(poisoned_run: PoisonedRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("verify") / "run"
    return run_training(settings(poisoned_run, folder, folder.parent / "cache"))


@pytest.fixture(scope="module")
def config(poisoned_run: PoisonedRun, run: Path) -> Config:
    return settings(poisoned_run, run, run.parent / "cache")


@pytest.fixture(scope="module")
def report(config: Config) -> Report:
    return gradian.analyze(config, capability="letters", out=Path(config.cache_dir) / "reports")


@pytest.fixture(scope="module")
def out(run: Path) -> Path:
    return run.parent / "verified"


@pytest.fixture(scope="module")
def verification(report: Report, run: Path, out: Path) -> Verification:
    return api.verify(run=run, report=report, out=out, control=True)


def test_what_the_planted_rows_took_away_comes_back_without_them(
    verification: Verification, poisoned_run: PoisonedRun
) -> None:
    assert verification.outcome == "recovered"
    assert (verification.before.tuned, verification.after.tuned) == (0.0, 1.0)
    assert verification.gain.delta == 1.0
    assert (verification.before.rows, verification.after.rows) == (20, 12)
    assert verification.dropped.cluster == "planted"
    assert [int(name.rpartition("-")[2]) for name in verification.dropped.ids] == list(poisoned_run.planted)
    assert sum(item.came_back for item in verification.items) == len(LETTERS)
    assert verification.notes == ()


def test_the_second_run_differs_from_the_first_in_its_rows_alone(
    verification: Verification, run: Path, out: Path, poisoned_run: PoisonedRun
) -> None:
    first, second = read_run(run), read_run(out / "retrained")
    assert first is not None
    assert second is not None
    assert {k: v for k, v in first.inputs.items() if k != "dataset"} == {
        k: v for k, v in second.inputs.items() if k != "dataset"
    }
    assert (first.backend, first.seed, second.dataset.n) == (second.backend, second.seed, 12)
    lines = poisoned_run.train.read_text().splitlines(keepends=True)
    kept = [line for row, line in enumerate(lines) if row not in poisoned_run.planted]
    assert (out / "retrained.jsonl").read_text() == "".join(kept)


def test_dropping_as_many_other_rows_brings_nothing_back(
    verification: Verification, poisoned_run: PoisonedRun, out: Path
) -> None:
    control = verification.control
    assert control is not None
    assert len(control.ids) == 8
    assert not set(control.ids) & set(verification.dropped.ids)
    assert control.round.tuned == 0.0
    assert control.lead.ci_low == 1.0
    assert any("it was these rows" in line for line in verification.summary)
    assert len((out / "control.jsonl").read_text().splitlines()) == 12


def test_both_files_are_written(verification: Verification, out: Path) -> None:
    assert json.loads((out / "verify.json").read_text())["outcome"] == "recovered"
    assert (out / "verify.md").read_text().startswith("# Gradian verification: `letters`")


def test_a_second_time_trains_nothing_and_says_the_same(
    verification: Verification,
    run: Path,
    report: Report,
    config: Config,
    out: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    first = (out / "verify.json").read_bytes()
    before = (out / "retrained" / "gradian_run.json").stat().st_mtime_ns
    with caplog.at_level(logging.INFO, "gradian"):
        again = api.verify(run=run, report=Path(config.cache_dir) / "reports", out=out, control=True)
    assert again == verification
    assert (out / "verify.json").read_bytes() == first
    assert (out / "retrained" / "gradian_run.json").stat().st_mtime_ns == before
    assert caplog.text.count("nothing to train") == 3


def test_without_a_report_the_run_is_attributed_first(
    verification: Verification, config: Config, run: Path, out: Path, tmp_path: Path
) -> None:
    shutil.copytree(out / "retrained", tmp_path / "retrained")
    alone = api.verify(config, run=run, out=tmp_path, capability="letters")
    assert alone.before == verification.before.model_copy(update={"run": str(run)})
    assert alone.gain == verification.gain
    assert alone.control is None
    assert (tmp_path / "round-1" / "report.json").is_file()


def test_a_run_of_another_trainer_is_refused_with_what_to_do_instead(tmp_path: Path, report: Report) -> None:
    with pytest.raises(RunError, match=r"trl wrote this one(.|\n)*gradian_run.json(.|\n)*--write-clean"):
        api.verify(run=RUNS / "healthy-trl-1.16", report=report, out=tmp_path / "out")
    with pytest.raises(RunError, match="no such run folder"):
        api.verify(run=tmp_path / "nowhere", report=report, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def copied(run: Path, folder: Path, **changes: object) -> Path:
    target = folder / "run"
    shutil.copytree(run, target)
    record = json.loads((target / "gradian_run.json").read_text())
    record.update(changes)
    (target / "gradian_run.json").write_text(json.dumps(record))
    return target


def test_a_record_without_its_settings_names_what_is_missing(
    run: Path, report: Report, tmp_path: Path
) -> None:
    moved = copied(run, tmp_path, inputs={"device": "cpu"})
    with pytest.raises(RunError, match=r"no inputs.dtype, inputs.attn_implementation"):
        api.verify(run=moved, report=report, out=tmp_path / "out")


def test_inputs_that_changed_since_are_named_before_anything_is_trained(
    run: Path, report: Report, tmp_path: Path
) -> None:
    moved = copied(run, tmp_path, seed=99)
    with pytest.raises(RunError, match=r"cannot be repeated(.|\n)*seed"):
        api.verify(run=moved, report=report, out=tmp_path / "out")
    assert not (tmp_path / "out" / "retrained").exists()


def test_a_dataset_that_moved_is_passed_by_its_new_place(
    run: Path, report: Report, config: Config, tmp_path: Path, out: Path, verification: Verification
) -> None:
    record = read_run(run)
    assert record is not None
    gone = {"path": str(tmp_path / "gone.jsonl"), "hash": record.dataset.hash, "n": 20, "n_trained": 20}
    moved = copied(run, tmp_path, dataset=gone)
    with pytest.raises(RunError, match=r"gone.jsonl(.|\n)*--dataset"):
        api.verify(run=moved, report=report, out=tmp_path / "out")
    shutil.copytree(out / "retrained", tmp_path / "out" / "retrained")
    found = api.verify(run=moved, report=report, dataset=config.dataset, out=tmp_path / "out")
    assert found.gain == verification.gain


def test_a_report_of_another_adapter_is_refused(
    report: Report, poisoned_run: PoisonedRun, poisoned_cache: Path, run: Path, tmp_path: Path
) -> None:
    other = gradian.analyze(poisoned_run.config(poisoned_cache), capability="letters")
    with pytest.raises(ConfigError, match="another adapter"):
        api.verify(run=run, report=other, out=tmp_path)


def test_another_eval_set_than_the_reports_is_refused(
    run: Path, report: Report, poisoned_run: PoisonedRun, tmp_path: Path
) -> None:
    half = tmp_path / "eval.jsonl"
    half.write_text("".join(poisoned_run.eval.read_text().splitlines(keepends=True)[:6]))
    with pytest.raises(ConfigError, match=r"not the report's(.|\n)*6 rows"):
        api.verify(run=run, report=report, eval_dataset=half, out=tmp_path / "out")
    with pytest.raises(ConfigError, match="no such eval set"):
        api.verify(run=run, report=report, eval_dataset=tmp_path / "nowhere", out=tmp_path / "out")


def test_a_report_that_accuses_nothing_is_refused_before_anything_is_loaded(
    report: Report, tmp_path: Path
) -> None:
    silent = report.model_copy(update={"diagnosed": False})
    with pytest.raises(NothingAccusedError):
        api.verify(run=tmp_path / "nowhere", report=silent, out=tmp_path / "out")


def test_a_config_beside_a_report_is_refused(
    config: Config, report: Report, run: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="--report"):
        api.verify(config, run=run, report=report, out=tmp_path)


def test_a_report_whose_settings_this_version_does_not_know_is_refused(
    report: Report, run: Path, tmp_path: Path
) -> None:
    later = report.model_copy(update={"provenance": {**report.provenance, "config": {"later": 1}}})
    with pytest.raises(ConfigError, match="other settings"):
        api.verify(run=run, report=later, out=tmp_path)


def test_a_report_is_no_permission_to_run_code_and_nothing_is_loaded(
    report: Report, run: Path, tmp_path: Path
) -> None:
    code = tmp_path / "tokenizer"
    code.mkdir()
    (code / "evil.py").write_text(f"open({str(tmp_path / 'fired')!r}, 'w')\nclass C: pass\n")
    auto = {"AutoConfig": "evil.C", "AutoTokenizer": ["evil.C", None]}
    (code / "config.json").write_text(json.dumps({"model_type": "evil", "auto_map": auto}))
    (code / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "C", "auto_map": auto}))
    forged = {**report.provenance["config"], "trust_remote_code": True, "tokenizer": str(code)}
    other = report.model_copy(update={"provenance": {**report.provenance, "config": forged}})
    with pytest.raises(ConfigError, match="no permission to run"):
        api.verify(run=run, report=other, out=tmp_path / "out")
    assert not (tmp_path / "fired").exists()


def test_the_config_of_a_report_is_a_config(report: Report, config: Config) -> None:
    assert config_from_mapping(report.provenance["config"]) == config


@pytest.mark.parametrize("accused", [(0, 2), (1, 2, 3), ()])
def test_the_control_draws_as_many_of_the_other_rows(accused: tuple[int, ...]) -> None:
    rows = control_rows(Accused("a", "a", accused, ("x",) * len(accused), 7), seed=1)
    assert len(rows) == len(accused)
    assert not set(rows) & set(accused)
    assert rows == tuple(sorted(set(rows)))
    assert rows == control_rows(Accused("a", "a", accused, ("x",) * len(accused), 7), seed=1)


def test_where_fewer_rows_would_stay_there_is_no_control() -> None:
    assert control_rows(Accused("a", "a", (0, 1, 2), ("x", "y", "z"), 6), seed=1) == ()
