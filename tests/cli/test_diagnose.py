from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from typer.testing import CliRunner

import gradian.diagnosis
from gradian.checks.audit import Audit
from gradian.checks.registry import CannotTell, Check, Need
from gradian.cli.diagnose import FailOn
from gradian.cli.main import app
from gradian.report.audit.model import audit_schema
from gradian.types import Finding, Severity

from .test_commands import call_of

runner = CliRunner()
ROW = '{"prompt": "a", "completion": "b"}\n'


@pytest.fixture
def dataset(tmp_path: Path) -> str:
    path = tmp_path / "train.jsonl"
    path.write_text(ROW, encoding="utf-8")
    return str(path)


def _medium(audit: Audit) -> Iterator[Finding]:
    yield Finding("data.a", Severity.MEDIUM, f"{len(audit.examples)} row is odd", fix="Look at it.")


def _silent(audit: Audit) -> Iterator[Finding]:
    raise CannotTell("the row does not say")
    yield


@pytest.fixture(autouse=True)
def _checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four checks of known outcome instead of the real ones."""
    made = (
        Check("data.a", "s", (Need.DATASET,), False, _medium),
        Check("data.b", "s", (Need.DATASET,), False, lambda audit: []),
        Check("data.c", "s", (Need.DATASET, Need.EVAL_DATASET), False, lambda audit: []),
        Check("data.d", "s", (), False, _silent),
    )
    monkeypatch.setattr(gradian.diagnosis, "all_checks", lambda: made)


def test_flags_lie_over_the_config(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "gradian.yaml"
    file.write_text(
        "dataset: from-file.jsonl\nbase_model: from-file\nchecks: {data: {tiny_dataset_rows: 7}}\n"
    )
    flags = ["-c", str(file), "-d", "d.jsonl", "--eval-dataset", "e.jsonl", "-r", "run", "-o", "out"]
    called = call_of(monkeypatch, "diagnose", ["diagnose", *flags, "--max-seq-length", "48"])
    config = called.config
    assert (config.dataset, config.eval_dataset, config.run_dir) == ("d.jsonl", "e.jsonl", "run")
    assert config.base_model == "from-file"
    assert config.checks.data.tiny_dataset_rows == 7
    assert called.options["max_seq_length"] == 48
    assert called.options["out"] == Path("out")


def test_the_terminal_shows_findings_by_severity_and_one_line_on_what_did_not_run(dataset: str) -> None:
    result = runner.invoke(app, ["diagnose", "-d", dataset])
    assert result.exit_code == 0, result.stderr
    lines = [line.rstrip() for line in result.stdout.splitlines()]
    assert lines[0] == "- 1 finding: 1 medium."
    assert "MEDIUM (1)" in lines
    assert "data.a      1 row is odd" in lines
    assert "            Fix: Look at it." in lines
    assert " ".join(lines[-3:]).strip() == (
        "1 check passed, 2 skipped: 1 needs --eval-dataset, 1 cannot tell from what is there."
        " - data.d: the row does not say"
    )


def test_json_stands_alone_on_standard_output_and_the_files_are_named_on_standard_error(
    dataset: str, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    result = runner.invoke(app, ["diagnose", "-d", dataset, "--format", "json", "--out", str(out)])
    assert result.exit_code == 0, result.stderr
    data = json.loads(result.stdout)
    Draft202012Validator(audit_schema()).validate(data)
    assert [finding["id"] for finding in data["findings"]] == ["data.a"]
    assert data["skipped"][0] == {
        "id": "data.c",
        "reason": "needs --eval-dataset",
        "missing": ["--eval-dataset"],
    }
    assert (out / "audit.json").read_text(encoding="utf-8") == result.stdout
    assert (out / "audit.md").is_file()
    assert result.stderr == f"report: {out / 'audit.md'}\n"


@pytest.mark.parametrize(
    ("name", "shown"), [("a  b", "a  b/audit.md"), ("o\x1b[31m\u202e", "o\\x1b[31m\\u202e/audit.md")]
)
def test_a_folder_cannot_steer_the_terminal_by_its_name(
    dataset: str, tmp_path: Path, name: str, shown: str
) -> None:
    out = runner.invoke(app, ["diagnose", "-d", dataset, "-o", str(tmp_path / name)]).output
    assert out.splitlines()[-1].endswith(shown)
    assert not {"\x1b", "\u202e"} & set(out)


@pytest.mark.parametrize(
    ("threshold", "code"), [("critical", 0), ("high", 0), ("medium", 1), ("low", 1), ("info", 1)]
)
def test_a_finding_of_the_named_severity_or_above_fails_the_command(
    dataset: str, threshold: str, code: int
) -> None:
    result = runner.invoke(app, ["diagnose", "-d", dataset, "--fail-on", threshold])
    assert result.exit_code == code
    assert "data.a" in result.stdout


def test_the_severities_of_the_flag_are_those_of_findings() -> None:
    assert [severity.value for severity in FailOn] == [severity.value for severity in Severity]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "--dataset, --run"),
        (["--eval-dataset", "e.jsonl", "-m", "model"], "--dataset, --run"),
        (["-d", "nowhere.jsonl"], "nowhere.jsonl"),
        (["-r", "nowhere"], "nowhere"),
        (["-d", "{dataset}", "--max-seq-length", "1"], "--max-seq-length"),
        (["-d", "{dataset}", "-m", "{dataset}.d"], "tokenizer"),
        (["-d", "{dataset}", "-o", "{dataset}"], "cannot be written"),
        (["-c", "nowhere.yaml"], "nowhere.yaml"),
    ],
)
def test_what_a_user_can_put_right_exits_with_2_and_names_it(
    dataset: str, arguments: list[str], says: str
) -> None:
    Path(f"{dataset}.d").mkdir()
    result = runner.invoke(app, ["diagnose", *(a.replace("{dataset}", dataset) for a in arguments)])
    assert result.exit_code == 2
    assert says in result.stderr
    assert result.stdout == ""
