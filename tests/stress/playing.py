"""Runs a script of this folder at the size that a test can afford."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.stress import syscalls

ROOT = Path(__file__).resolve().parents[2]

needs_syscalls = pytest.mark.skipif(
    not syscalls.available(), reason="file system calls are watched on Linux, by a library that cc makes"
)


def play(script: str, *arguments: str, ops: str = "native") -> dict[str, dict[str, Any]]:
    """What a script prints, whatever it found."""
    done = subprocess.run(
        [sys.executable, "-m", f"tests.stress.{script}", *arguments],
        cwd=ROOT,
        env={**os.environ, **syscalls.environment(), "GRADIAN_OPS": ops, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.stdout, done.stderr
    found: dict[str, dict[str, Any]] = json.loads(done.stdout)
    return found


def faults_of(figures: dict[str, Any]) -> dict[str, Any]:
    """The entries of a part's figures that list what is wrong."""
    names = ("unsound", "untyped", "differ", "stuck", "lost", "failed", "wrong")
    return {name: figures[name] for name in names if figures.get(name)}
