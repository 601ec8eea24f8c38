"""Compiled code that runs for long lets signals through, and works on afterwards."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from gradian import _native

# The same rows again and again: minutes of work in a few megabytes.
ROWS = np.random.default_rng(0).standard_normal((64, 1 << 15), dtype=np.float32).astype(np.float16)
MANY = [ROWS] * 3000


class Rang(BaseException):
    """Raised by the handler of the alarm."""


@contextmanager
def alarm(seconds: float) -> Iterator[None]:
    """Raise `Rang` on this thread when the time is up."""

    def ring(number: int, frame: object) -> None:
        raise Rang

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def queries(m: int) -> np.ndarray:
    return np.random.default_rng(1).standard_normal((m, ROWS.shape[1]), dtype=np.float32)


def query_dots(rows: list[np.ndarray], m: int, threads: int) -> object:
    return _native.query_dots(rows, "float16", queries(m), threads)


def datainf(rows: list[np.ndarray], m: int, threads: int) -> object:
    return _native.datainf_accumulate(rows, "float16", queries(m), np.ones(64 * len(rows)), threads)[1]


def gram(rows: list[np.ndarray], m: int, threads: int) -> object:
    return _native.gram(rows, "float16", ROWS.shape[1], threads)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize(
    ("work", "segments", "m"),
    [(query_dots, MANY, 40), (datainf, MANY, 40), (datainf, MANY * 10, 1), (gram, MANY[:200], 0)],
    ids=["query_dots", "datainf_accumulate", "datainf_accumulate of one query", "gram"],
)
def test_a_handler_of_a_signal_ends_the_work_and_the_threads_work_on(
    work: Callable[[list[np.ndarray], int, int], object], segments: list[np.ndarray], m: int, threads: int
) -> None:
    wanted = work(segments[:2], m, threads)
    begun = time.monotonic()
    with pytest.raises(Rang), alarm(0.1):
        work(segments, m, threads)
    assert time.monotonic() - begun < 2
    assert np.array_equal(work(segments[:2], m, threads), wanted)


def test_a_handler_that_raises_nothing_changes_nothing() -> None:
    segments = MANY[:150]
    wanted = query_dots(segments, 8, 2)
    seen = []
    before = signal.signal(signal.SIGALRM, lambda number, frame: seen.append(number))
    signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
    try:
        found = query_dots(segments, 8, 2)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert seen
    assert np.array_equal(found, wanted)
