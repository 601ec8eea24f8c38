"""Several processes at one index: run as `python -m tests.stress.concurrency`.

Eight processes build one id, with working locks, with locks that do nothing and with locks that the file system
refuses; every call that changes a file waits a drawn moment first, so that they meet everywhere. Then a cache that
cannot be written: it serves what is whole and refuses the rest.
"""

from __future__ import annotations

import argparse
import errno
import fcntl
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from gradian.errors import StoreError
from gradian.store.format import BUILD_JOURNAL_FILE
from gradian.store.writer import open_writer
from tests.store.building import BLOCKS, CHUNK, INPUTS, N, build, digests, memory_folder
from tests.stress import syscalls
from tests.stress.crash import in_child
from tests.stress.scenes import SCENES, Scene, build_counting, build_part, index_folder
from tests.stress.syscalls import Action, faults

PROCESSES = 8


def _refuse(number: int) -> Callable[..., None]:
    def flock(*arguments: Any) -> None:
        raise OSError(number, os.strerror(number))

    return flock


LOCKS: Mapping[str, Callable[..., Any]] = {
    "locks": fcntl.flock,
    "locks that do nothing": lambda *arguments: None,
    "ENOLCK": _refuse(errno.ENOLCK),
    "EOPNOTSUPP": _refuse(errno.EOPNOTSUPP),
    "ENOSYS": _refuse(errno.ENOSYS),
}


@dataclass
class Figures:
    """What a run showed.

    Attributes:
        runs: runs of several processes at once.
        failed: what the processes said that failed.
        unsound: runs that left something that is taken for whole and is not.
        differ: runs that did not end in the bytes of one process alone.
        killed: processes that were killed among the others.
    """

    runs: int = 0
    failed: list[str] = field(default_factory=list)
    unsound: list[str] = field(default_factory=list)
    differ: list[str] = field(default_factory=list)
    killed: int = 0

    @property
    def is_good(self) -> bool:
        """Whether nothing was found."""
        return not (self.failed or self.unsound or self.differ)


def together(scene: Scene, folder: Path, runs: int, flock: Callable[..., Any], kills: int) -> Figures:
    """Let eight processes do the work at once, `kills` of them killed at a drawn step."""
    figures, rng, alone = Figures(), random.Random(0), folder / "alone"
    alone.mkdir()
    scene.prepare(alone)
    scene.work(alone)
    wanted = _files(alone)
    for run in range(runs):
        cache = folder / "together"
        cache.mkdir()
        scene.prepare(cache)
        go, waiting = os.pipe()
        said = folder / "said"
        said.write_text("")
        children = []
        for number in range(PROCESSES):
            dies = rng.randrange(1, 30) if number < kills else 0
            pid = os.fork()
            if pid == 0:
                os.close(waiting)
                os.read(go, 1)
                _one_of_them(partial(_work, scene, cache, flock, dies), said)
            children.append(pid)
        os.close(waiting)
        os.close(go)
        statuses = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
        figures.runs += 1
        figures.killed += statuses.count(-signal.SIGKILL)
        figures.failed += [f"run {run}: {line}" for line in said.read_text().splitlines()]
        if not scene.is_sound(cache):
            figures.unsound.append(f"run {run}")
        if kills:
            # The dead may have left something; the next one clears it away.
            scene.work(cache)
        if unlike := set(_files(cache, kills > 0).items()) ^ set(wanted.items()):
            figures.differ.append(f"run {run}: {sorted(name for name, _ in unlike)[:4]}")
        shutil.rmtree(cache)
        shutil.rmtree(folder / "together.other", ignore_errors=True)
    return figures


def _files(cache: Path, leftovers: bool = False) -> dict[str, str]:
    """What lies there, without locks and, after a kill beside a whole index, without what is never read."""
    left = (".lock", ".partial", BUILD_JOURNAL_FILE) if leftovers else (".lock",)
    return {name: digest for name, digest in digests(cache).items() if not name.endswith(left)}


def _work(scene: Scene, cache: Path, flock: Callable[..., Any], dies: int) -> None:
    fcntl.flock = flock
    action, number = (Action.DIE, 0) if dies else (Action.DELAY, 2000)
    with faults(cache, dies or 1, action, number, persistent=True):
        scene.work(cache)
    if not scene.is_sound(cache):
        raise AssertionError("it ended with an index that is not sound")


def _one_of_them(work: Callable[[], None], said: Path) -> None:
    status = 0
    try:
        work()
    except BaseException as error:  # noqa: BLE001
        status = 1
        with said.open("a") as file:
            file.write(f"{type(error).__name__}: {str(error)!r}\n")
    os._exit(status)


@dataclass
class ReadOnly:
    """What a cache that cannot be written showed.

    Attributes:
        served: states of a cache from which a whole index was read.
        refused: the error in each state that asks for writing.
        wrong: what went otherwise.
    """

    served: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        """Whether nothing was found."""
        return not self.wrong


def _nothing(cache: Path) -> None:
    return


def _closed(cache: Path) -> None:
    build(cache)
    cache.chmod(0o700)


def _inner_closed(cache: Path) -> None:
    build(cache)
    index_folder(cache).chmod(0o700)


def _chunk_closed(cache: Path) -> None:
    build(cache)
    (index_folder(cache) / "chunks/000001.safetensors").chmod(0o600)


def _read(cache: Path) -> None:
    with open_writer(cache, INPUTS, BLOCKS, N, "float32", CHUNK) as writer:
        if not writer.finished:
            build_counting(cache)
        writer.finish().verify()


def _build_anew(cache: Path) -> None:
    build_counting(cache, force=True)


STATES: Mapping[str, tuple[Callable[[Path], object], Callable[[Path], None], bool]] = {
    "whole": (build, _read, True),
    "whole, to be built anew": (build, _build_anew, False),
    "unfinished": (lambda cache: build_part(cache, (0, 1)), _read, False),
    "all but its manifest": (lambda cache: build_part(cache, (0, 1, 2)), _read, False),
    "empty": (_nothing, _read, False),
    "closed": (_closed, _read, False),
    "the index closed": (_inner_closed, _read, False),
    "a chunk closed": (_chunk_closed, _read, False),
}
"""What is there, what is tried, and whether it must succeed."""

NOBODY = 65534


def read_only(folder: Path) -> ReadOnly:
    """Read and try to build in each state of a cache: as a user who may not write, and on a read-only mount."""
    figures = ReadOnly()
    folder.chmod(0o755)
    for name, (prepare, attempt, served) in STATES.items():
        cache = folder / name
        cache.mkdir()
        prepare(cache)
        before = digests(cache)
        _judge(figures, name, served, _answer(folder, partial(as_nobody, partial(attempt, cache))))
        if "closed" not in name and mounted_read_only(cache):
            try:
                _judge(figures, f"{name}, mounted", served, _answer(folder, partial(attempt, cache)))
            finally:
                subprocess.run(["umount", cache], check=True)
        if digests(cache) != before:
            figures.wrong.append(f"{name}: the cache changed")
    return figures


def _judge(figures: ReadOnly, name: str, served: bool, answer: str) -> None:
    if served and answer == "served":
        figures.served.append(name)
    elif not served and answer.startswith("refused"):
        figures.refused[name] = answer.removeprefix("refused: ")
    else:
        figures.wrong.append(f"{name}: {answer}")


def _answer(folder: Path, attempt: Callable[[], None]) -> str:
    """What an attempt in a forked process says."""
    said = folder / "said"
    said.write_text("")
    said.chmod(0o666)

    def tell() -> None:
        try:
            attempt()
            answer = "served"
        except StoreError as error:
            answer = f"refused: {type(error).__name__}: {error.problem}"
        except BaseException:  # noqa: BLE001
            answer = traceback.format_exc()
        said.write_text(answer)

    in_child(tell)
    return said.read_text()


def as_nobody(attempt: Callable[[], None]) -> None:
    """Do something as a user to whom nothing belongs, where this process may become one."""
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    attempt()


def mounted_read_only(cache: Path) -> bool:
    """Mount a folder read-only over itself; False where this is not allowed."""
    bound = subprocess.run(["mount", "--bind", cache, cache], check=False, capture_output=True)
    if bound.returncode:
        return False
    subprocess.run(["mount", "-o", "remount,bind,ro", cache], check=True, capture_output=True)
    return True


def play(scenes: list[str], runs: int, other_runs: int, states: bool) -> dict[str, Figures | ReadOnly]:
    """All of it; the figures by name."""
    found: dict[str, Figures | ReadOnly] = {}
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="gradian-together-", dir=memory_folder()) as base:
        for lock, flock in LOCKS.items():
            for name in scenes:
                for kills in (0, 3):
                    main_one = (name, lock, kills) == ("build", "locks that do nothing", 0)
                    count = runs if main_one else other_runs
                    if not count:
                        continue
                    folder = Path(base) / "runs"
                    folder.mkdir()
                    title = f"{name}, {lock}{f', {kills} of them killed' if kills else ''}"
                    found[title] = together(SCENES[name], folder, count, flock, kills)
                    print(f"{time.monotonic() - start:.0f} s: {title}", file=sys.stderr)
                    shutil.rmtree(folder)
        if states:
            found["read-only"] = read_only(Path(base))
    return found


def main() -> None:
    """Parse the arguments, play, print."""
    parser = argparse.ArgumentParser(prog="python -m tests.stress.concurrency", description=__doc__)
    parser.add_argument("--runs", type=int, default=100, help="runs of eight processes without working locks")
    parser.add_argument(
        "--other-runs", type=int, default=10, help="runs with other locks, other work, and processes killed"
    )
    parser.add_argument("--scenes", nargs="*", choices=SCENES, default=list(SCENES), metavar="NAME")
    parser.add_argument(
        "--no-read-only", action="store_true", help="leave out the cache that cannot be written"
    )
    arguments = parser.parse_args()
    syscalls.stand_between("tests.stress.concurrency")
    found = play(arguments.scenes, arguments.runs, arguments.other_runs, not arguments.no_read_only)
    print(json.dumps({name: asdict(figures) for name, figures in found.items()}, indent=1))
    raise SystemExit(0 if all(figures.is_good for figures in found.values()) else 1)


if __name__ == "__main__":
    main()
