"""A time limit on code that nobody vouches for and that runs in this process: the chat template of a model's folder.

A loop of a template is a loop of Python, which nothing ends from outside but an exception. CPython delivers one to
another thread between two of its bytecodes; a watching thread sends it when the time is over.
"""

from __future__ import annotations

import ctypes
import threading
import time
from importlib import import_module
from types import TracebackType
from typing import Any

_CHECK_S = 0.25
_IDLE_S = 5.0


class OutOfTime(BaseException):
    """Raised in the code that took too long; no `except Exception` of its own can swallow it."""


class TimeLimit:
    """A context manager whose body is ended by `OutOfTime` once it has run for `seconds`.

    Entering and leaving cost a microsecond, so that it can stand around every row. One thread watches for all that
    enter, and ends by itself when nobody does. What runs in C without coming back to Python is not ended by it; see
    `end_process_when_stuck`.

    Args:
        seconds: how long a body may take.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._lock = threading.Lock()
        self._since: dict[int, float] = {}  # By the thread that is in a body.
        self._ended: set[int] = set()
        self._watching = False
        self._heart: Any = None

    def __enter__(self) -> None:
        with self._lock:
            self._since[threading.get_ident()] = time.monotonic()
            if self._heart is None and _last_words is not None:
                self._heart = _heartbeat(self.seconds, _last_words)
            if self._heart is not None:
                self._heart.beat()
            if not self._watching:
                self._watching = True
                threading.Thread(target=self._watch, name="time limit", daemon=True).start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        here = threading.get_ident()
        with self._lock:
            self._since.pop(here, None)
            if self._heart is not None and not self._since:
                self._heart.rest()
            late = here in self._ended and kind is not OutOfTime
            self._ended.discard(here)
        if late:  # Sent, and not delivered any more: it would arrive in somebody else's code.
            _send(here, None)

    def _watch(self) -> None:
        used = time.monotonic()
        while True:
            time.sleep(_CHECK_S)
            now = time.monotonic()
            with self._lock:
                over = [thread for thread, since in self._since.items() if now - since > self.seconds]
                for thread in over:
                    del self._since[thread]
                    self._ended.add(thread)
                    _send(thread, OutOfTime)
                if self._since:
                    used = now
                    if self._heart is not None:
                        self._heart.beat()
                if now - used > _IDLE_S:
                    self._watching = False
                    return


# What is said when the process is ended; None where it is not.
_last_words: str | None = None
_STUCK = 2


def end_process_when_stuck(message: str) -> None:
    """From now on end the process, with exit code 2, where a body holds the interpreter's lock for as long again.

    Only other compiled code can do that, so nothing does where the extension is not installed.

    Args:
        message: what goes to standard error before.
    """
    global _last_words
    _last_words = message


def _heartbeat(seconds: float, message: str) -> Any:
    try:
        return import_module("gradian._native").Heartbeat(seconds, message, _STUCK)
    except ImportError:
        return None


def _send(thread: int, error: type[BaseException] | None) -> None:
    wanted = ctypes.py_object(error) if error is not None else None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), wanted)
