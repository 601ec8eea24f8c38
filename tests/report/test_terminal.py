from __future__ import annotations

import io

import pytest
from rich.console import Console

from gradian.report import terminal
from gradian.report.model import Report

from . import samples
from .golden import assert_golden
from .hostile import EVERYTHING
from .test_markdown import attacked


def shown(report: Report, width: int = 80, *, terminal_like: bool = False) -> str:
    stream = io.StringIO()
    # An empty environment: NO_COLOR or FORCE_COLOR of the machine must not decide a test.
    console = Console(
        file=stream,
        width=width,
        force_terminal=terminal_like or None,
        color_system="standard" if terminal_like else "auto",
        _environ={},
    )
    console.print(terminal.render(report))
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines()) + "\n"


def test_the_summary_reads_as_it_was_approved() -> None:
    assert_golden(shown(samples.poisoned()), "tests/golden/terminal_poisoned.txt")


@pytest.mark.parametrize("width", [40, 80, 120])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    assert max(len(line) for line in shown(samples.poisoned(), width).splitlines()) <= width


def test_a_pipe_gets_no_colour_and_a_terminal_does() -> None:
    assert "\x1b" not in shown(samples.poisoned())
    assert "\x1b[" in shown(samples.poisoned(), terminal_like=True)


def test_nothing_from_outside_controls_the_terminal() -> None:
    text = shown(attacked(EVERYTHING))
    assert all(char.isprintable() or char == "\n" for char in text)


def test_markup_of_a_row_is_shown_not_obeyed() -> None:
    assert "[bold red]x[/]" in shown(attacked("[bold red]x[/]"), 200)
    assert ":smile:" in shown(attacked(":smile:"), 200)
