"""Progress on the terminal: rate and time left, for work that takes more than two seconds.

What an interruption would keep goes to whoever ends the command (`interrupts.py`).
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as RichProgress
from rich.text import Text

from gradian.cli import interrupts
from gradian.progress import Advance, NullProgress, Progress

DELAY_S = 2.0


class _RateColumn(ProgressColumn):
    """Items a second, or seconds an item where that is the larger figure."""

    def render(self, task: Task) -> Text:
        """Return the rate of `task`, empty until it is known."""
        speed = task.finished_speed or task.speed
        if not speed:
            return Text("")
        return Text(f"{speed:.1f}/s" if speed >= 1 else f"{1 / speed:.1f} s each")


class QuietProgress(NullProgress):
    """Shows no bars."""

    def keep(self, what: str, state: Callable[[], str], *, forced: bool = False) -> None:
        """See `gradian.progress.Progress`."""
        signals = interrupts.current()
        if signals is not None:
            signals.keep(what, state, forced=forced)


class TerminalProgress(QuietProgress):
    """Bars on standard error, each shown only once its task has run for `delay_s` seconds.

    Args:
        console: where the bars go.
        delay_s: seconds before a task's bar appears, so that short work prints nothing.
    """

    def __init__(self, console: Console, delay_s: float = DELAY_S) -> None:
        self._console = console
        self._delay_s = delay_s
        self._lock = threading.Lock()
        self._live: RichProgress | None = None
        self._shown: set[TaskID] = set()

    @contextmanager
    def task(self, title: str, total: int) -> Iterator[Advance]:
        """Begin a task of `total` items; the value advances it by a number of items."""
        with self._lock:
            if self._live is None:
                self._live = self._bars()
            bars = self._live
            # `visible` and not a late add_task, so that rate and time left count from the beginning.
            task_id = bars.add_task(title, total=total, visible=False)
        timer = threading.Timer(self._delay_s, self._show, args=(bars, task_id))
        timer.daemon = True
        timer.start()

        def advance(done: int) -> None:
            bars.advance(task_id, done)

        try:
            yield advance
        finally:
            timer.cancel()
            self._finish(bars, task_id)

    def _bars(self) -> RichProgress:
        return RichProgress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            _RateColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self._console,
            transient=True,
        )

    def _show(self, bars: RichProgress, task_id: TaskID) -> None:
        with self._lock:
            # The task may have ended between the timer's firing and this line.
            if task_id not in bars.task_ids:
                return
            bars.update(task_id, visible=True)
            if not self._shown:
                bars.start()
            self._shown.add(task_id)

    def _finish(self, bars: RichProgress, task_id: TaskID) -> None:
        with self._lock:
            bars.remove_task(task_id)
            if task_id in self._shown:
                self._shown.remove(task_id)
                if not self._shown:
                    bars.stop()
            if not bars.task_ids:
                self._live = None


def terminal_progress() -> Progress:
    """Return bars on standard error, or nothing where that is not a terminal."""
    console = Console(stderr=True)
    return TerminalProgress(console) if sys.stderr.isatty() else QuietProgress()
