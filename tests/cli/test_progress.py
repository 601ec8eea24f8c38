from __future__ import annotations

import io
import time

import pytest
from rich.console import Console

from gradian.cli.progress import TerminalProgress, terminal_progress
from gradian.progress import NullProgress


def terminal() -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    return Console(file=out, force_terminal=True, width=120, no_color=True), out


def wait_for(text: str, out: io.StringIO) -> None:
    deadline = time.monotonic() + 5
    while text not in out.getvalue():
        assert time.monotonic() < deadline, f"{text!r} never appeared in {out.getvalue()!r}"
        time.sleep(0.02)


def test_work_that_outlasts_the_delay_shows_title_count_rate_and_time_left() -> None:
    console, out = terminal()
    with TerminalProgress(console, delay_s=0.05).task("Indexing [red]rows[/red]", 8) as advance:
        for _ in range(4):
            advance(1)
            time.sleep(0.05)
        wait_for("4/8", out)
        wait_for("/s", out)
    assert "Indexing [red]rows[/red]" in out.getvalue()
    assert "left" in out.getvalue()


def test_a_slow_first_item_does_not_hide_the_task() -> None:
    console, out = terminal()
    with TerminalProgress(console, delay_s=0.05).task("Converting", 1):
        wait_for("Converting", out)


def test_work_shorter_than_the_delay_prints_nothing() -> None:
    console, out = terminal()
    with TerminalProgress(console, delay_s=30).task("Indexing", 8) as advance:
        advance(8)
    assert out.getvalue() == ""


def test_tasks_nest_and_follow_one_another() -> None:
    console, out = terminal()
    progress = TerminalProgress(console, delay_s=0.02)
    with progress.task("outer", 2) as outer:
        with progress.task("inner", 3) as inner:
            wait_for("inner", out)
            inner(3)
        outer(1)
        wait_for("1/2", out)
    with progress.task("second", 1):
        wait_for("second", out)


def test_the_terminal_is_given_back_after_an_error() -> None:
    console, out = terminal()

    def stopped() -> None:
        with TerminalProgress(console, delay_s=0).task("x", 1):
            wait_for("x", out)
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        stopped()
    # The cursor, which the bar hides, is shown again.
    assert out.getvalue().rindex("\x1b[?25h") > out.getvalue().rindex("\x1b[?25l")
    assert not console.is_alt_screen


def test_standard_error_that_is_no_terminal_gets_nothing() -> None:
    assert isinstance(terminal_progress(), NullProgress)


def test_the_silent_progress_accepts_everything() -> None:
    with NullProgress().task("x", 3) as advance:
        advance(1)
        advance(2)
