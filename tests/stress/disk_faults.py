"""A disk that is full, over quota or broken: run as `python -m tests.stress.disk_faults`.

Every call fails in turn with ENOSPC, EDQUOT and EIO, once and from there on; calls do less than they were asked for;
and a real small file system fills up (where mounting is allowed) or files meet a real size limit. Each time the
error must be a typed one, the build must go on when there is space, and no space may be promised that is not there.
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import resource
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

from gradian.errors import DiskSpaceError
from gradian.store.writer import open_writer
from gradian.types import BlockSpec
from tests.store.building import digests, gradients, memory_folder, write_pending
from tests.stress import syscalls
from tests.stress.crash import Figures, fail_at_every_step, in_child
from tests.stress.scenes import SCENES
from tests.stress.syscalls import Action, Kind

BLOCKS = (BlockSpec("wide", ((3000,),), 0), BlockSpec("narrow", ((5,),), 3000))
ROWS, CHUNK = 40, 8
PAGE = 4096


@dataclass
class Space:
    """What a file system without space showed.

    Attributes:
        kind: how the space was limited.
        limits: limits that were tried.
        refused: limits at which the build did not fit.
        wrong: errors of another kind, signals, files with less space than their size, other bytes at the end.
    """

    kind: str
    limits: int = 0
    refused: int = 0
    wrong: list[str] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        """Whether nothing was found, and the limit was met at all."""
        return not self.wrong and 0 < self.refused < self.limits


def _build(cache: Path) -> None:
    with open_writer(cache, {"rows": ROWS}, BLOCKS, ROWS, "float32", CHUNK) as writer:
        write_pending(writer, gradients(BLOCKS, ROWS), 3, whole=True)
        writer.finish()


FITS, FULL, OTHER = 0, 3, 4


def _attempt(cache: Path, said: Path, limit: int | None = None) -> int:
    """Build in a process of its own: FITS, FULL, OTHER, or a signal below zero."""

    def build() -> None:
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        try:
            _build(cache)
        except DiskSpaceError:
            os._exit(FULL)
        except BaseException as error:  # noqa: BLE001
            os.write(fd, repr(error).encode())
            os._exit(OTHER)

    # Open before the limit is set: a message must not meet it.
    fd = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        return in_child(build)
    finally:
        os.close(fd)


def _judge(figures: Space, cache: Path, said: Path, status: int, limit: int) -> None:
    figures.limits += 1
    figures.refused += status == FULL
    if status not in (FITS, FULL):
        what = signal.Signals(-status).name if status < 0 else said.read_text()
        figures.wrong.append(f"limit {limit}: {what}")
    for path in cache.rglob("*"):
        found = path.stat()
        if path.is_file() and found.st_blocks * 512 < found.st_size:
            figures.wrong.append(f"limit {limit}: {path.name} has space for {found.st_blocks * 512} bytes")


def real_disk(folder: Path, step: int) -> Space:
    """Build on a file system of more and more space, each time from what the last time left, and each time anew."""
    figures, said = Space("a tmpfs of its own"), folder / "said"
    _build(folder / "whole")
    wanted = digests(folder / "whole")
    total = sum(path.stat().st_size for path in (folder / "whole").rglob("*"))
    for anew in (True, False):
        with _mounted(folder / "disk", PAGE * 8) as disk:
            limit, status = PAGE * 8, FULL
            while status != FITS and limit < 2 * total:
                status = _attempt(disk / "cache", said)
                _judge(figures, disk, said, status, limit)
                if status == FITS and digests(disk / "cache") != wanted:
                    figures.wrong.append(f"limit {limit}: other bytes")
                if anew and status != FITS:
                    shutil.rmtree(disk / "cache", ignore_errors=True)
                limit += step
                subprocess.run(["mount", "-o", f"remount,size={limit}", disk], check=True)
    return figures


@contextmanager
def _mounted(disk: Path, size: int) -> Iterator[Path]:
    disk.mkdir(exist_ok=True)
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size},nr_inodes=200", "tmpfs", disk],
        check=True,
        capture_output=True,
    )
    try:
        yield disk
    finally:
        subprocess.run(["umount", disk], check=True)


def can_mount(folder: Path) -> bool:
    """Whether this process may mount a file system."""
    try:
        with _mounted(folder / "tried", 1 << 20):
            return True
    except (OSError, subprocess.CalledProcessError):
        return False


def file_limit(folder: Path, step: int) -> Space:
    """Build under larger and larger limits of a file's size, which the system enforces as it does a quota."""
    figures, said = Space("RLIMIT_FSIZE"), folder / "said"
    _build(folder / "whole")
    wanted = digests(folder / "whole")
    limit, status = 0, FULL
    while status != FITS:
        status = _attempt(folder / "cache", said, limit)
        _judge(figures, folder / "cache", said, status, limit)
        limit += step
    if digests(folder / "cache") != wanted:
        figures.wrong.append("other bytes")
    return figures


def play(scenes: list[str], stride: int, step: int) -> dict[str, Figures | Space]:
    """All of it; the figures by name."""
    found: dict[str, Figures | Space] = {}
    with tempfile.TemporaryDirectory(prefix="gradian-disk-", dir=memory_folder()) as base:

        def run(name: str, show: Callable[[Path], Figures | Space]) -> None:
            folder = Path(base) / f"{len(found)}"
            folder.mkdir()
            found[name] = show(folder)
            shutil.rmtree(folder)

        for name in scenes:
            fail = partial(fail_at_every_step, SCENES[name], stride=stride)
            for number in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
                kinds = Kind.ALL if number == errno.EIO else Kind.TAKES_SPACE
                for persistent in (False, True):
                    title = f"{name}: {errno.errorcode[number]} {'from there on' if persistent else 'once'}"
                    run(title, partial(fail, number, persistent=persistent, kinds=kinds))
            short = partial(fail, 0, action=Action.SHORT, kinds=Kind.WRITE)
            run(f"{name}: short writes", partial(short, persistent=True))
        run("files of limited size", partial(file_limit, step=step))
        if can_mount(Path(base)):
            run("a disk of limited size", partial(real_disk, step=step))
    return found


def main() -> None:
    """Parse the arguments, play, print."""
    parser = argparse.ArgumentParser(prog="python -m tests.stress.disk_faults", description=__doc__)
    parser.add_argument("--scenes", nargs="*", choices=SCENES, default=list(SCENES), metavar="NAME")
    parser.add_argument("--stride", type=int, default=1, help="steps from one failure to the next")
    parser.add_argument("--step", type=int, default=PAGE, help="bytes from one size of the disk to the next")
    arguments = parser.parse_args()
    syscalls.stand_between("tests.stress.disk_faults")
    found = play(arguments.scenes, arguments.stride, arguments.step)
    print(json.dumps({name: asdict(figures) for name, figures in found.items()}, indent=1))
    raise SystemExit(0 if all(figures.is_good for figures in found.values()) else 1)


if __name__ == "__main__":
    main()
