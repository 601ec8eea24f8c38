"""docs/gpu-validation.md and the suite say the same."""

from __future__ import annotations

import re
from pathlib import Path

from run_gpu_suite import parse
from scenarios import SCENARIOS

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "gpu-validation.md").read_text(encoding="utf-8")


def test_every_option_is_documented_and_every_documented_option_exists() -> None:
    listed = {
        name
        for line in PAGE.splitlines()
        if line.startswith("| `--")
        for name in re.findall(r"`--([a-z0-9-]+)", line.split("|")[1])
    }
    known = {name.replace("_", "-") for name in vars(parse(["--all"]))} - {"quick"}
    assert listed == known


def test_every_scenario_is_documented_with_the_checks_that_must_fire() -> None:
    table = dict(re.findall(r"^\| `([a-z0-9_]+)` \|[^|]*\| ([^|]*) \|$", PAGE, flags=re.MULTILINE))
    assert {name: tuple(re.findall(r"`([a-z_.]+)`", cell)) for name, cell in table.items()} == {
        scenario.name: scenario.must_fire for scenario in SCENARIOS
    }


def test_every_command_line_in_it_parses() -> None:
    lines = re.findall(r"^python experiments/gpu/run_gpu_suite.py (.*)$", PAGE, flags=re.MULTILINE)
    assert len(lines) >= 2
    for line in lines:
        parse(line.split("#")[0].split())
