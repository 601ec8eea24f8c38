"""The file system calls of this process, counted, failed, torn or noted: `syscalls.c` loaded before libc.

`stand_between` runs the program again with the library in front; after that `faults` and `noted` work, in this
process and in those it forks. Linux only, and a C compiler must be there.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from pathlib import Path

_SOURCE = Path(__file__).with_name("syscalls.c")


class Kind(IntFlag):
    """What a call does to a file or folder; the numbers are those of `syscalls.c`."""

    WRITE = 1
    SYNC = 2
    RENAME = 4
    MKDIR = 8
    REMOVE = 16
    ALLOCATE = 32
    CREATE = 64
    OPEN = 128
    READ = 256
    LOOK = 512
    CHANGES = WRITE | SYNC | RENAME | MKDIR | REMOVE | ALLOCATE | CREATE
    ALL = CHANGES | OPEN | READ | LOOK
    TAKES_SPACE = WRITE | SYNC | RENAME | MKDIR | ALLOCATE | CREATE


class Action(IntEnum):
    """What happens at the chosen call; the numbers are those of `syscalls.c`."""

    FAIL = 1
    DIE = 2
    DIE_AFTER = 3
    DIE_TORN = 4
    SHORT = 5
    DELAY = 6


@dataclass
class Faults:
    """What became of the calls under `faults`."""

    steps: int = 0
    hit: Kind | None = None


@dataclass(frozen=True)
class Operation:
    """A call that changed something, or a flush.

    Attributes:
        what: W write, S flush, R rename, M make a folder, U remove, A allocate, T set the length, C create.
        failed: whether it failed; only flushes are noted then.
        offset: where in the file.
        size: how much of it; for T the new length.
        path: the file or folder; for R the old name.
        target: for R the new name.
        data: for W what was written.
    """

    what: str
    failed: bool
    offset: int
    size: int
    path: str
    target: str
    data: bytes


def available() -> bool:
    """Whether this machine can do it."""
    return sys.platform == "linux" and shutil.which("cc") is not None


def library() -> Path:
    """The compiled library, made once a machine."""
    source = _SOURCE.read_bytes()
    name = f"gradian-syscalls-{os.getuid()}-{hashlib.sha256(source).hexdigest()[:16]}.so"
    target = Path(tempfile.gettempdir()) / name
    if not target.exists():
        partial = target.with_suffix(f".{os.getpid()}")
        subprocess.run(
            [
                "cc",
                "-O1",
                "-shared",
                "-fPIC",
                "-Wall",
                "-Werror",
                "-o",
                partial,
                _SOURCE,
                "-ldl",
                "-lpthread",
            ],
            check=True,
        )
        partial.rename(target)
    return target


def environment() -> dict[str, str]:
    """The variables of a process that has the library in front; one thread, so that it can fork."""
    wanted, loaded = str(library()), os.environ.get("LD_PRELOAD", "")
    return {
        "LD_PRELOAD": loaded if wanted in loaded else f"{wanted} {loaded}".strip(),
        "OMP_NUM_THREADS": "1",
    }


def stand_between(module: str) -> None:
    """Run `python -m module` with the same arguments again, the library loaded first; then return."""
    if environment()["LD_PRELOAD"] != os.environ.get("LD_PRELOAD"):
        arguments = [sys.executable, "-m", module, *sys.argv[1:]]
        os.execve(sys.executable, arguments, {**os.environ, **environment()})


def _loaded() -> ctypes.CDLL:
    found = ctypes.CDLL(None)
    found.faults_arm.argtypes = [ctypes.c_char_p, ctypes.c_uint, ctypes.c_long, *[ctypes.c_int] * 3]
    found.faults_arm.restype = None
    found.faults_count.restype = ctypes.c_long
    found.faults_trace.argtypes = [ctypes.c_char_p, ctypes.c_int]
    found.faults_trace.restype = None
    return found


@contextmanager
def faults(
    root: Path,
    step: int = 0,
    action: Action = Action.FAIL,
    number: int = errno.EIO,
    *,
    persistent: bool = False,
    kinds: Kind = Kind.CHANGES,
) -> Iterator[Faults]:
    """Let the step-th call below `root`, and with `persistent` all after it, meet the action.

    Args:
        root: the folder whose calls count; absolute.
        step: 1 is the first call; 0 only counts.
        action: what happens.
        number: the errno of FAIL; the longest DELAY in microseconds.
        persistent: later calls meet it too.
        kinds: which calls count.
    """
    shim, result = _loaded(), Faults()
    shim.faults_arm(os.fsencode(root), int(kinds), step, int(action), number, int(persistent))
    try:
        yield result
    finally:
        result.steps, hit = shim.faults_count(), shim.faults_hit()
        result.hit = Kind(hit) if hit else None
        shim.faults_arm(b"", 0, 0, 0, 0, 0)


@contextmanager
def noted(root: Path, log: Path) -> Iterator[None]:
    """Append what changes below `root` to `log`, which lies elsewhere; combines with `faults`, inside it."""
    shim = _loaded()
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    shim.faults_trace(os.fsencode(root), fd)
    try:
        yield
    finally:
        shim.faults_trace(None, -1)
        os.close(fd)


def read_notes(log: Path) -> list[Operation]:
    """The operations that `noted` wrote down."""
    found, data, at = [], log.read_bytes(), 0
    while at < len(data):
        end = data.index(b"\n", at)
        what, *numbers = data[at:end].decode().split()
        failed, offset, size, taken, a, b = map(int, numbers)
        at = end + 1
        path, target = os.fsdecode(data[at : at + a]), os.fsdecode(data[at + a : at + a + b])
        at += a + b
        found.append(Operation(what, bool(failed), offset, size, path, target, data[at : at + taken]))
        at += taken
    return found
