from __future__ import annotations

import io

import pytest
from rich.console import Console

from gradian.report.verification import terminal
from gradian.report.verification.model import Verification
from tests.report.golden import assert_golden
from tests.report.hostile import EVERYTHING

from . import samples


def shown(verification: Verification, width: int = 80) -> str:
    stream = io.StringIO()
    Console(file=stream, width=width, _environ={}).print(terminal.render(verification))
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines()) + "\n"


def test_the_finding_comes_first_and_the_rounds_follow() -> None:
    assert_golden(shown(samples.recovered()), "tests/golden/terminal_verify.txt")


@pytest.mark.parametrize("width", [40, 80, 120])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    assert max(len(line) for line in shown(samples.recovered(), width).splitlines()) <= width


def test_nothing_from_outside_controls_the_terminal() -> None:
    text = shown(samples.broken(EVERYTHING))
    assert all(char.isprintable() or char == "\n" for char in text)
