"""Builds that are killed or run together end in the same bytes. The scenes are in `killing.py`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

on_both = pytest.mark.usefixtures("implementation")

ROOT = Path(__file__).resolve().parents[2]


def _play(scene: str, cache: Path, number: int) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.store.killing", scene, str(cache), str(number)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


@on_both
def test_a_build_killed_at_any_step_resumes_to_the_same_bytes(cache: Path) -> None:
    result = _play("steps", cache, 30)
    assert result["steps"] > 80
    assert result["differ"] == []
    assert result["recomputed"] == 0


def test_a_build_killed_at_random_resumes_to_the_same_bytes(cache: Path) -> None:
    result = _play("random", cache, 3)
    assert result["killed"] > 0
    assert result["differ"] == 0


def test_processes_that_build_one_index_make_one_index(cache: Path) -> None:
    assert _play("together", cache, 4) == {"failed": 0, "differ": 0}


def test_processes_whose_locks_do_nothing_make_one_index_of_the_same_bytes(cache: Path) -> None:
    assert _play("lockless", cache, 4) == {"failed": 0, "differ": 0}
