"""From settings to an audit: what is read, what is assumed and what is said about it."""

from __future__ import annotations

import dataclasses
import json
import os
from collections import Counter
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest

import gradian
from gradian.checks.audit import NO_LIMIT, Audit
from gradian.checks.registry import Check, Need
from gradian.config import Config, config_from_mapping
from gradian.data.formats import load_dataset
from gradian.data.ids import dataset_hash
from gradian.diagnosis import prepare, run_checks
from gradian.errors import ConfigError
from gradian.progress import Advance
from gradian.runs.gradian_run import RUN_FILE, RunDataset
from gradian.types import Finding, Severity
from tests.runs.test_gradian_run import RUN

CASES = Path(__file__).parent / "fixtures" / "cases"
ROWS = [
    {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": f"yes {i}"}]}
    for i in range(3)
]


class Counting:
    """A progress that keeps how far each task came."""

    def __init__(self) -> None:
        self.done: Counter[tuple[str, int]] = Counter()

    def task(self, title: str, total: int) -> AbstractContextManager[Advance]:
        return nullcontext(lambda number: self.done.update({(title, total): number}))


def settings(**values: object) -> Config:
    return config_from_mapping({key: str(value) for key, value in values.items()})


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    path = tmp_path / "train.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8")
    return path


@pytest.fixture
def run(tmp_path: Path, dataset: Path) -> Path:
    """A run of `gradian train` on the dataset, cut at 40 tokens."""
    folder = tmp_path / "run"
    folder.mkdir()
    rows = RunDataset(str(dataset), dataset_hash(load_dataset(dataset)), 3, 3)
    record = dataclasses.replace(
        RUN, dataset=rows, base_model="org/base", train={"learning_rate": 2e-4, "max_seq_length": 40}
    )
    (folder / RUN_FILE).write_text(record.to_json(), encoding="utf-8")
    return folder


def test_without_a_dataset_and_a_run_there_is_nothing_to_diagnose(dataset: Path) -> None:
    with pytest.raises(ConfigError, match="nothing to diagnose"):
        prepare(settings(eval_dataset=dataset, base_model="m"))


def test_a_dataset_alone_is_enough_and_nothing_else_is_made_up(dataset: Path) -> None:
    prepared = prepare(settings(dataset=dataset))
    audit = prepared.audit
    assert (len(audit.examples), audit.run, audit.encoder, audit.max_seq_length) == (3, None, None, None)
    assert (prepared.findings, prepared.notes) == ((), ())
    assert prepared.inputs.dataset is not None
    assert prepared.inputs.dataset.shapes == {"messages": 3}
    assert prepared.inputs.limits["data"]["tiny_dataset_rows"] == 100


def test_the_length_is_the_flags_or_else_the_runs_and_its_source_is_told(dataset: Path, run: Path) -> None:
    config = settings(dataset=dataset, run_dir=run)
    recorded = prepare(config)
    assert (recorded.audit.max_seq_length, recorded.inputs.max_seq_length) == (40, 40)
    assert RUN_FILE in (recorded.inputs.max_seq_length_source or "")
    flagged = prepare(config, max_seq_length=48)
    assert (flagged.audit.max_seq_length, flagged.inputs.max_seq_length_source) == (48, "--max-seq-length")
    with pytest.raises(ConfigError, match="so few tokens"):
        prepare(config, max_seq_length=1)


def test_rows_are_encoded_whole_when_nobody_says_where_they_were_cut(dataset: Path, run: Path) -> None:
    config = settings(dataset=dataset, tokenizer=CASES / "_tok", base_model="nowhere")
    prepared = prepare(config)
    assert prepared.inputs.tokenizer == str(CASES / "_tok")  # and not the base model's
    encoder = prepared.audit.encoder
    assert encoder is not None
    assert encoder.max_seq_length == NO_LIMIT
    assert min(len(row) for row in prepared.audit.encoded) > 2
    cut = prepare(config, max_seq_length=4).audit
    assert {len(row) for row in cut.encoded} == {4}


def test_the_rows_that_a_run_of_ours_records_are_read_when_none_are_given(run: Path, dataset: Path) -> None:
    prepared = prepare(settings(run_dir=run))
    assert len(prepared.audit.examples) == 3
    assert any("No `--dataset` was given" in note for note in prepared.notes)
    assert prepared.findings == ()
    dataset.unlink()
    gone = prepare(settings(run_dir=run))
    assert gone.audit.dataset is None
    assert any("cannot be read: no such file" in note for note in gone.notes)


@pytest.mark.parametrize("path", ["/nowhere/rows.jsonl", "x" * 5000, "a\0b", "pipe", ".", "/dev/zero"])
def test_a_record_that_names_no_rows_that_can_be_read_is_no_reason_to_stop(run: Path, path: str) -> None:
    record = json.loads((run / RUN_FILE).read_text())
    if path == "pipe":
        path = str(run / path)
        os.mkfifo(path)
    record["dataset"]["path"] = path
    (run / RUN_FILE).write_text(json.dumps(record))
    prepared = prepare(settings(run_dir=run))
    assert prepared.audit.dataset is None
    assert "names its training data, which cannot be read" in prepared.notes[0]


def test_other_rows_than_those_of_the_run_are_a_finding(run: Path, dataset: Path, tmp_path: Path) -> None:
    fewer = tmp_path / "fewer.jsonl"
    fewer.write_text(json.dumps(ROWS[0]) + "\n", encoding="utf-8")
    (found,) = prepare(settings(run_dir=run, dataset=fewer)).findings
    assert (found.id, found.severity) == ("audit.other_rows", Severity.HIGH)
    assert found.figures == {"trained_rows": 3, "given_rows": 1}
    assert str(dataset) in found.fix
    assert prepare(settings(run_dir=run, dataset=dataset)).findings == ()


def test_a_file_that_could_not_be_read_is_a_finding_with_its_reason(run: Path) -> None:
    (run / "adapter_config.json").write_text("{}", encoding="utf-8")
    (run / "adapter_model.bin").write_bytes(b"pickle")
    (found,) = prepare(settings(run_dir=run)).findings
    assert (found.id, found.severity) == ("audit.unread_files", Severity.LOW)
    (run / "trainer_state.json").write_text("{", encoding="utf-8")
    (found,) = prepare(settings(run_dir=run)).findings
    assert (found.id, found.severity) == ("audit.unread_files", Severity.MEDIUM)
    assert found.title.startswith("2 files of the run folder could not be read")
    assert "trainer_state.json: " in found.evidence
    assert sorted(found.figures["files"]) == ["adapter_model.bin", "trainer_state.json"]


def test_the_base_model_of_the_run_is_named_but_never_loaded_unasked(run: Path) -> None:
    prepared = prepare(settings(run_dir=run))
    assert prepared.audit.encoder is None
    assert any("`org/base`" in note and "--base-model" in note for note in prepared.notes)


def test_findings_on_the_inputs_stand_with_those_of_the_checks_by_severity(
    monkeypatch: pytest.MonkeyPatch, run: Path, tmp_path: Path
) -> None:
    def judge(audit: Audit) -> list[Finding]:
        assert len(audit.encoded) == 1
        return [Finding("data.a", severity, "t") for severity in (Severity.CRITICAL, Severity.LOW)]

    check = Check("data.a", "s", (Need.TOKENIZER,), False, judge)
    monkeypatch.setattr("gradian.diagnosis.all_checks", lambda: (check,))
    fewer = tmp_path / "fewer.jsonl"
    fewer.write_text(json.dumps(ROWS[0]) + "\n", encoding="utf-8")
    prepared = prepare(settings(run_dir=run, dataset=fewer, tokenizer=CASES / "_tok"))
    counting = Counting()
    result = run_checks(prepared, counting)
    assert [finding.id for finding in result.findings] == ["data.a", "audit.other_rows", "data.a"]
    assert counting.done == {("Checking", 1): 1, ("Encoding training rows", 1): 1}


def test_the_api_takes_the_settings_by_the_names_of_the_flags(
    run: Path, dataset: Path, tmp_path: Path
) -> None:
    report = gradian.diagnose(
        dataset=str(dataset), run=str(run), checks={"data": {"tiny_dataset_rows": 2}}, out=tmp_path / "out"
    )
    assert report.inputs.run is not None
    assert report.inputs.run.trainer == "gradian"
    assert report.inputs.limits["data"]["tiny_dataset_rows"] == 2
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["audit.json", "audit.md"]
