"""docs/gpu-validation.md and the suite say the same."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from run_gpu_suite import RESULTS, VERDICT, parse, recorded, settings_of
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


def test_the_figures_shown_are_those_of_the_kept_run() -> None:
    kept = json.loads((RESULTS / VERDICT).read_text(encoding="utf-8"))
    assert kept["settings"] == recorded(
        settings_of(parse(["--all", "--quick", "--model", "SmolLM2-135M-Instruct"]))
    )
    shown = PAGE.partition("## What `--quick` gave")[2].partition("## Options")[0]
    rows = [line for line in shown.splitlines() if re.match(r"\| [ABCD] ", line)]
    assert rows == list(_rows(kept["experiments"]))


def _rows(experiments: dict[str, Any]) -> Iterator[str]:
    for name, found in experiments["A"]["poisons"].items():
        top = f"`{found['accused']}` ranks first; uptake {found['uptake']:.1%}"
        yield f"| A `{name}` | {found['status']} | {_capability(found)} | {top} |"
    for name, found in experiments["B"]["scenarios"].items():
        others = [check for check in found["fired"] if check not in found["must_fire"]]
        assert found["missing"] == []
        assert found["accused"] is None
        checks = f"{_code(found['must_fire'])}; also {_code(others)}"
        yield f"| B `{name}` | {found['status']} | {_capability(found)} | {checks} |"
    back = experiments["C"]
    rounds = (
        f"difference {back['round1_delta']:+.3f}, after dropping {back['removed']} rows {back['round2_delta']:+.3f}:"
        f" gain {back['gain']:+.3f} {_interval(back['gain_ci'])}"
    )
    precision = f"removal precision {back['removal_precision']:.3f}, recall {back['removal_recall']:.3f}"
    yield f"| C `wrong_facts` | {back['status']} | {rounds} | {precision} |"
    yield f"| D | {experiments['D']['status']} | | needs CUDA and unsloth |"


def _capability(found: dict[str, Any]) -> str:
    return f"{found['base']:.3f} to {found['tuned']:.3f} {_interval(found['ci'])}"


def _interval(ends: list[float]) -> str:
    return f"[{ends[0]:+.3f}, {ends[1]:+.3f}]"


def _code(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
