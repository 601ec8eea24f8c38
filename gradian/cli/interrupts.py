"""Ends a command on SIGINT, SIGTERM or SIGHUP: one sentence, what is kept, the command that goes on, an exit code.

The signal is raised in the main thread as `Interrupted`, so that what was begun is put away. Compiled code of a library
may not come back for minutes, or may swallow what is raised in it. So a second thread, which hears of every signal
through a pipe, ends the process when the time is up, or at once on a second signal. That is no worse than a `kill -9`,
which nothing on the disk is hurt by.

A signal that is ignored when the command begins (`nohup`, a job of a script in the background) stays ignored.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import NoReturn

from gradian.shell import shell_line

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
GRACE_S = 1.0
"""How long a command may take to put away what it was at."""

_FORCE = "--force"
# How long to wait for a terminal that takes no output (Ctrl-S, a full pipe).
_WRITE_S = 0.1


class Interrupted(BaseException):
    """A signal asked the command to end. No Exception: nothing may take it for a failure and go on."""


class Interrupts:
    """The signals of one command line.

    Args:
        words: the command line, the program first.
        grace_s: seconds between a signal and the end of the process, at most.
    """

    def __init__(self, words: Sequence[str], grace_s: float = GRACE_S) -> None:
        self._words = list(words)
        self._grace_s = grace_s
        self._kept: dict[str, Callable[[], str]] = {}
        self._forced = False
        self._signal: int | None = None
        self._raised = False
        self._done: int | None = None
        self._told = threading.Lock()
        self._heard, self._wake = -1, -1
        self._taken: list[int] = []

    def install(self) -> None:
        """Take the signals over; on the main thread."""
        self._heard, self._wake = os.pipe()
        os.set_blocking(self._wake, False)
        # Before the handlers: from then on no signal goes unheard.
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        threading.Thread(target=self._watch, name="gradian-interrupts", daemon=True).start()
        for number in SIGNALS:
            # None: some C code took it before us.
            if signal.getsignal(number) not in (signal.SIG_IGN, None):
                self._taken.append(number)
                signal.signal(number, self._handle)
        os.register_at_fork(after_in_child=self._let_go)
        # Run last: all threads have ended by then, and the interpreter is about to put back what signals do by default.
        atexit.register(self._ignore)
        sys.unraisablehook = self._unraisable

    def keep(self, what: str, state: Callable[[], str], *, forced: bool = False) -> None:
        """See `gradian.progress.Progress`."""
        self._kept[what] = state
        self._forced |= forced

    @property
    def arrived(self) -> bool:
        """Whether a signal came: whatever is raised after it is its doing."""
        return self._signal is not None

    def finished(self, code: int) -> None:
        """The command has done its work, with an exit code: from here on there is nothing to interrupt.

        The interpreter still has threads to wait for. Where one does not end, a signal does not have to wait for it too.
        """
        self._done = code
        for number in self._taken:
            signal.signal(number, self._heed_nothing)

    def end(self) -> int:
        """Tell the user, once, and give the exit code."""
        number = self._signal or signal.SIGINT
        if self._told.acquire(blocking=False):
            _write_to_terminal(self.message(number))
        return 128 + number

    def leave(self) -> NoReturn:
        """Tell the user and end the process, from the main thread, when all is put away.

        Without the interpreter's own clearing up: after large imports it takes seconds, in which the second thread no
        longer runs.
        """
        code = self.end()
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
        os._exit(code)

    def message(self, number: int) -> str:
        """What the user is told about a signal."""
        name = signal.Signals(number).name
        lines = [f"interrupted by {name}"]
        lines += [f"kept: {text}" for text in self._states()]
        lines.append("this goes on from there:" if len(lines) > 1 else "this starts it again:")
        return "".join(f"gradian: {_shown(line)}\n" for line in lines) + f"{self.command()}\n"

    def command(self) -> str:
        """The command line that goes on, to be copied into a shell."""
        words = [word for word in self._words if not (self._forced and word == _FORCE)]
        return shell_line(words)

    def _states(self) -> list[str]:
        found = []
        for state in tuple(self._kept.values()):
            try:
                found.append(state())
            except Exception:  # noqa: BLE001  (the message must come out, whatever the moment)
                continue
        return found

    def _handle(self, number: int, frame: object) -> None:
        if self._signal is None:
            self._signal = number
        if not self._raised:
            self._raised = True
            raise Interrupted

    def _ignore(self) -> None:
        for number in self._taken:
            signal.signal(number, signal.SIG_IGN)

    def _heed_nothing(self, number: int, frame: object) -> None:
        # Not yet SIG_IGN: the second thread would not hear of it.
        return

    def _watch(self) -> None:
        number = self._next(None)
        if self._signal is None and self._done is None:
            self._signal = number
        self._next(self._grace_s)
        self._end_now()

    def _next(self, seconds: float | None) -> int | None:
        """The next signal, or None when there was none for so long."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not select.select([self._heard], [], [], left)[0]:
                return None
            number = os.read(self._heard, 1)[0]
            if number in self._taken:
                return number

    def _end_now(self) -> NoReturn:
        # Not sys.exit: this thread cannot end the others, and the main one may be deep in compiled code.
        os._exit(self.end() if self._done is None else self._done)

    def _unraisable(self, problem: sys.UnraisableHookArgs) -> None:
        # Raised in a destructor or a callback, where nothing can be raised: the other thread ends the process.
        if not issubclass(problem.exc_type, Interrupted):
            sys.__unraisablehook__(problem)

    def _let_go(self) -> None:
        # A forked child is not the command, and has no second thread.
        signal.set_wakeup_fd(-1)
        for number in self._taken:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        self._taken = []


_current: Interrupts | None = None


def install() -> Interrupts:
    """Take over the signals of this process, once, for the command line it was started with."""
    global _current
    if _current is None:
        _current = Interrupts([_program(), *sys.argv[1:]])
        _current.install()
    return _current


def current() -> Interrupts | None:
    """What `install` made; None where this process is no command line."""
    return _current


def _program() -> str:
    """What started this program: its plain name where the shell would find the same file under it."""
    given = sys.argv[0]
    name = os.path.basename(given)
    if given in ("-c", "-m", "") or name in ("main.py", "__main__.py"):
        return "gradian"
    for folder in os.get_exec_path():
        found = os.path.join(folder, name)
        if os.access(found, os.X_OK):
            return name if os.path.exists(given) and os.path.samefile(found, given) else given
    return given


def _shown(text: str) -> str:
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def _write_to_terminal(text: str) -> None:
    # Past sys.stderr, whose lock a stuck thread may hold, and only as long as somebody takes it.
    if os.isatty(2):
        # A progress bar hides the cursor, and may stand on this line.
        text = f"\r\x1b[K\x1b[?25h{text}"
    data = text.encode("utf-8", "backslashreplace")
    try:
        while data and select.select([], [2], [], _WRITE_S)[1]:
            # No more at once than a pipe takes whole.
            data = data[os.write(2, data[:512]) :]
    except OSError:
        # The terminal is gone, as after SIGHUP.
        return
