from __future__ import annotations

import re

import pytest
from typer.testing import CliRunner

from gradian.cli.main import app
from gradian.supported import WINDOWS, Window


def test_it_reports_every_part_and_exits_with_0() -> None:
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == 0, result.stderr
    for title in ("Packages", "Devices", "Determinism", "Operations", "Training backends"):
        assert f"\n{title}\n  " in result.stdout
    for package in ("torch", "transformers", "peft", "trl"):
        assert re.search(rf"^  (WARNING )?{package}\b", result.stdout, flags=re.MULTILINE)
    for backend in ("hf", "trl", "unsloth"):
        assert re.search(rf"^  {backend}: (not )?available", result.stdout, flags=re.MULTILINE)
    assert re.search(r"^  cross_entropy on cpu: reference", result.stdout, flags=re.MULTILINE)


def test_a_version_outside_its_window_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(WINDOWS, "torch", Window("99", None))
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == 0
    assert re.search(r"^  WARNING torch \S+ is outside the supported window", result.stdout, re.MULTILINE)


def test_a_backend_that_cannot_run_says_why_and_what_to_do_on_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    lines = CliRunner().invoke(app, ["doctor"]).stdout.splitlines()
    assert (
        '  trl: not available, not installed: trl, datasets, accelerate; pip install "gradian-ml[train]"'
        in lines
    )
    assert sum(line.startswith("  unsloth: not available, ") for line in lines) == 1
