from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gradian.cli import doctor
from gradian.cli.doctor import WINDOWS, Window
from gradian.cli.main import app

CONSTRAINTS = Path(__file__).resolve().parents[2] / "constraints"


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


@pytest.mark.parametrize(
    ("window", "version", "inside"),
    [
        (Window("2.4", "2.13"), "2.4.0", True),
        (Window("2.4", "2.13"), "2.13.1+cpu", True),
        (Window("2.4", "2.13"), "2.13", True),
        (Window("2.4", "2.13"), "2.14.0", False),
        (Window("2.4", "2.13"), "2.3.9", False),
        (Window("2.4", "2.13"), "2.4.0rc1", False),
        (Window("0.18", None), "3.0", True),
        (Window(None, "0.24"), "0.24.9", True),
        (Window(None, "0.24"), "0.25.0.dev0", False),
    ],
)
def test_a_window_holds_both_its_ends(window: Window, version: str, inside: bool) -> None:
    assert window.holds(version) is inside


def test_a_window_reads_as_the_documentation_writes_it() -> None:
    assert str(Window("2.4", "2.13")) == "2.4 to 2.13"
    assert str(Window("0.18", None)) == "0.18 and above"
    assert str(Window(None, "0.24")) == "0.24 and below"


def test_the_tested_pins_lie_in_the_supported_window() -> None:
    pins = dict(
        re.findall(
            r"^([\w.-]+)==([\w.+]+)", (CONSTRAINTS / "cpu.txt").read_text(encoding="utf-8"), re.MULTILINE
        )
    )
    checked = {name for name, window in WINDOWS.items() if name in pins and window.holds(pins[name])}
    assert checked == {"torch", "transformers", "peft"}


def test_a_version_outside_its_window_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(doctor.WINDOWS, "torch", Window("99", None))
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == 0
    assert re.search(r"^  WARNING torch \S+ is outside the supported window", result.stdout, re.MULTILINE)


def test_a_backend_that_cannot_run_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "find_spec", lambda name: object())
    monkeypatch.setattr(doctor, "_version", lambda name: None if name == "trl" else "0.20")
    assert doctor.backend_obstacle("trl") == "not installed: trl"
    monkeypatch.setattr(doctor, "_version", lambda name: "0.99")
    assert "outside the supported window" in (doctor.backend_obstacle("trl") or "")
    monkeypatch.setattr(doctor, "_version", lambda name: "0.24")
    assert doctor.backend_obstacle("trl") is None


def test_a_backend_of_a_later_version_is_named_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "find_spec", lambda name: None)
    assert doctor.backend_obstacle("unsloth") == "this version of Gradian does not have it yet"
