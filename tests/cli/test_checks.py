from __future__ import annotations

import pytest
from typer.testing import CliRunner

from gradian.checks.registry import HEADINGS, Check, Need, all_checks
from gradian.cli.checks import listing
from gradian.cli.main import app
from tests.checks.test_registry import IDS

runner = CliRunner()


def entry(name: str, *, addition: bool = False) -> Check:
    return Check(name, "a summary", (Need.RUN,), addition, lambda audit: [])


def test_the_published_checks_are_41_lines_in_their_order_and_the_additions_stand_apart() -> None:
    result = runner.invoke(app, ["checks"])
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert [line.split()[:2] for line in lines[:41]] == [[name.partition(".")[0], name] for name in IDS]
    assert all(len(line.split()) > 2 for line in lines[:41])
    additions = [check.id for check in all_checks() if check.addition]
    assert lines[41:43] == ["", "beyond the 41:"]
    assert [line.split()[1] for line in lines[43:]] == additions
    assert "\x1b" not in result.stdout


def test_there_is_no_heading_without_additions() -> None:
    assert list(listing([entry("data.a")])) == ["data      data.a  a summary"]
    assert list(listing([entry("data.a"), entry("config.bc", addition=True)])) == [
        "data      data.a     a summary",
        "",
        "beyond the 1:",
        "config    config.bc  a summary",
    ]


def test_a_check_explains_itself_within_the_width_of_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    result = runner.invoke(app, ["checks", "config.overtraining"])
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0] == "config.overtraining: Too many epochs for the dataset size"
    assert [line for line in lines if line in (*HEADINGS, "Needs")] == [*HEADINGS, "Needs"]
    assert max(map(len, lines)) <= 60
    (check,) = [check for check in all_checks() if check.id == "config.overtraining"]
    for text in check.documentation.values():
        assert text in " ".join(result.stdout.split())


def test_an_unknown_check_is_the_users_error_and_the_near_name_is_told() -> None:
    result = runner.invoke(app, ["checks", "config.overtrainig"])
    assert result.exit_code == 2
    assert "did you mean 'config.overtraining'?" in result.stderr
    assert len(result.stderr) < 300
    assert result.stdout == ""
