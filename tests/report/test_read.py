from __future__ import annotations

import json
from pathlib import Path

import pytest

from gradian.errors import ConfigError
from gradian.report.read import read_report
from gradian.report.write import write_report

from . import samples
from .hostile import EVERYTHING
from .test_markdown import attacked


@pytest.mark.parametrize(
    "report",
    [samples.poisoned(), samples.not_significant(), samples.without_eval_set(), attacked(EVERYTHING)],
)
def test_a_report_reads_back_as_it_was_written(report: object, tmp_path: Path) -> None:
    file, _ = write_report(report, tmp_path)  # type: ignore[arg-type]
    assert read_report(file) == report
    assert read_report(tmp_path) == report


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("{", "no JSON"),
        ("[]", "schema_version None"),
        ('{"schema_version": 2}', "schema_version 2"),
        ('{"schema_version": 1}', "gradian_version: Field required"),
    ],
)
def test_what_is_no_report_is_a_users_error(text: str, found: str, tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_report(file)
    assert caught.value.where == str(file)
    assert caught.value.found is not None
    assert found in caught.value.found


def test_a_report_that_is_not_there_is_a_users_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_report(tmp_path)


def test_a_key_that_this_version_does_not_know_is_named(tmp_path: Path) -> None:
    file, _ = write_report(samples.poisoned(), tmp_path)
    file.write_text(json.dumps({**json.loads(file.read_text()), "later": 1}))
    with pytest.raises(ConfigError, match="later"):
        read_report(file)
