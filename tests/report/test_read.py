from __future__ import annotations

import json
import os
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


@pytest.mark.parametrize(
    ("place", "value", "found"),
    [
        (("examples", 0, "score"), [], "examples.0.score"),
        (("capability", "base"), [1], "capability.base"),
        (("examples", 0, "score"), 10**400, "examples.0.score"),
        (("examples", 1, "row"), 0, "examples.1 is said to be row 0"),
        (("examples", 0, "row"), -1, "examples.0 is said to be row -1"),
    ],
)
def test_a_field_that_is_not_what_a_report_holds_is_named(
    place: tuple[object, ...], value: object, found: str, tmp_path: Path
) -> None:
    file, _ = write_report(samples.poisoned(), tmp_path)
    data = json.loads(file.read_text())
    part = data
    for key in place[:-1]:
        part = part[key]
    part[place[-1]] = value
    file.write_text(json.dumps(data))
    with pytest.raises(ConfigError) as caught:
        read_report(file)
    assert found in (caught.value.found or "")


def test_a_pipe_and_a_device_are_no_reports(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "report.json")
    for path in (tmp_path, Path("/dev/zero")):
        with pytest.raises(ConfigError) as caught:
            read_report(path)
        assert "not a plain file" in (caught.value.found or "")
