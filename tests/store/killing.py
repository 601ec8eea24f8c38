"""Builds that die: run as `python -m tests.store.killing <what> <folder> [count]`, prints JSON.

A process of its own, because it forks and kills: nothing of pytest must be in it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from gradian import _native
from gradian.store.writer import open_writer
from tests.store.building import BLOCKS, CHUNK, INPUTS, N, build, digests, gradients, write_pending

STEPS = ("write", "pwrite", "fsync", "rename", "mkdir", "unlink", "posix_fallocate", "open")
"""The calls of `os` at which a build may die or fail. `open` matters for the folders and files it creates."""


@contextlib.contextmanager
def at_step(step: int, act: Callable[[str], None]) -> Iterator[list[int]]:
    """Call `act` before the step-th call of the file system, and (if it returns) before every later one."""
    count = [0]
    # Where the compiled writer runs, its call for a batch is one step.
    places = [(os, name) for name in STEPS] + [(_native.ChunkWriter, "write")]
    kept = [(place, name, getattr(place, name)) for place, name in places]

    def watched(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            count[0] += 1
            if count[0] >= step:
                act(name)
            return function(*arguments, **options)

        return call

    for place, name, function in kept:
        setattr(place, name, watched(name, function))
    try:
        yield count
    finally:
        for place, name, function in kept:
            setattr(place, name, function)


def in_child(work: Callable[[], None]) -> int:
    """Run in a forked process; its exit status, negative for a signal."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException:  # noqa: BLE001
            import traceback

            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _die(name: str) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _build_dying_at(cache: Path, step: int) -> None:
    with at_step(step, _die):
        build(cache)


def _resume(cache: Path) -> int:
    """Go on with the build; the number of chunks that were written."""
    with open_writer(cache, INPUTS, BLOCKS, N, "float32", CHUNK) as writer:
        done = write_pending(writer, gradients())
        writer.finish({"findings": []})
    return len(done)


def kill_at_every_step(folder: Path, stride: int) -> dict[str, Any]:
    """Kill a build at its k-th step and, for each k, its resume at a few steps; then finish it."""
    build(folder / "whole")
    wanted = digests(folder / "whole")
    first, differ, lost = 1, [], 0
    while True:
        cache = folder / f"k{first}"
        cache.mkdir()
        status = in_child(lambda cache=cache, first=first: _build_dying_at(cache, first))  # type: ignore[misc]
        if status == 0:
            break
        assert status == -signal.SIGKILL, status
        listed = _committed(cache)
        for again in range(1 + first % 5, 40, stride):
            in_child(lambda cache=cache, again=again: _build_dying_at(cache, again))  # type: ignore[misc]
            # What was committed stays committed.
            assert _committed(cache) >= listed
            listed = _committed(cache)
        pending = -(-N // CHUNK) - listed
        written = _resume(cache)
        lost = max(lost, written - pending)
        if digests(cache) != wanted:
            differ.append(first)
        first += 1
    return {"steps": first - 1, "differ": differ, "recomputed": lost}


def _committed(cache: Path) -> int:
    return sum(path.read_bytes().count(b"\n") for path in cache.rglob("journal.jsonl"))


def kill_at_random(folder: Path, count: int) -> dict[str, Any]:
    """Kill a longer build again and again, at any moment, until it gets through."""
    n = 400
    build(folder / "whole", n=n)
    start = time.monotonic()
    build(folder / "timed", n=n)
    length = time.monotonic() - start
    wanted = digests(folder / "whole")
    rng, killed, differ = random.Random(0), 0, 0
    for run in range(count):
        cache = folder / f"r{run}"
        for _ in range(3):
            pid = os.fork()
            if pid == 0:
                with contextlib.suppress(BaseException):
                    build(cache, n=n)
                os._exit(0)
            time.sleep(rng.random() * length * 0.6)
            os.kill(pid, signal.SIGKILL)
            killed += os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
        build(cache, n=n)
        differ += digests(cache) != wanted
    return {"killed": killed, "differ": differ}


def build_together(folder: Path, count: int, *, locks: bool) -> dict[str, Any]:
    """Several processes build one index at once, with working locks or with locks that do nothing."""
    build(folder / "whole")
    wanted, results = digests(folder / "whole"), []
    if not locks:
        fcntl.flock = lambda *arguments: None
    for run in range(count):
        cache = folder / f"t{run}"
        cache.mkdir()
        go, waiting = os.pipe()
        pids = []
        for _ in range(8):
            pid = os.fork()
            if pid == 0:
                os.close(waiting)
                os.read(go, 1)
                status = 1
                with contextlib.suppress(BaseException):
                    build(cache).verify()
                    status = 0
                os._exit(status)
            pids.append(pid)
        os.close(waiting)
        os.close(go)
        statuses = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
        results.append({"failed": sum(status != 0 for status in statuses), "same": digests(cache) == wanted})
    return {
        "failed": sum(result["failed"] for result in results),
        "differ": sum(not result["same"] for result in results),
    }


if __name__ == "__main__":
    what, where, number = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    work: dict[str, Callable[[], dict[str, Any]]] = {
        "steps": lambda: kill_at_every_step(where, number),
        "random": lambda: kill_at_random(where, number),
        "together": lambda: build_together(where, number, locks=True),
        "lockless": lambda: build_together(where, number, locks=False),
    }
    print(json.dumps(work[what]()))
