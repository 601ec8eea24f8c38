"""Faults put into the store on purpose: the scripts of this folder are worth something if each of these is found.

    python -m tests.stress.sabotage [NAME ...]

For each fault the script that should find it runs in a process of its own, at a size that is enough. Prints JSON:
what was found, by the name of the list in the script's figures. Exit code 1 where a fault went by unnoticed.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradian import jsonvalue
from gradian.ops import stored_rows
from gradian.report import write as report_write
from gradian.store import durable, manifest, writer
from gradian.store.reader import IndexReader
from tests.stress import syscalls

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Sabotage:
    """A fault, and who is to find it.

    Attributes:
        name: what is wrong, in words.
        script: the script of this folder.
        arguments: its arguments, which need be no more than enough.
        finds: the entry of its figures that must say something, or the error that must end it.
        apply: puts the fault in.
    """

    name: str
    script: str
    arguments: tuple[str, ...]
    finds: str
    apply: Callable[[], None]


SABOTAGES: dict[str, Sabotage] = {}


def sabotage(
    name: str, script: str, arguments: str, finds: str
) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Register what the decorated function does to this process."""

    def add(apply: Callable[[], None]) -> Callable[[], None]:
        SABOTAGES[name] = Sabotage(name, script, tuple(arguments.split()), finds, apply)
        return apply

    return add


def put(owner: object, **parts: object) -> None:
    """Put other parts in the place of some of a module's or a class's."""
    for name, part in parts.items():
        setattr(owner, name, part)


_POWER = "--draws 0 --stride 100000 --atomic-renames --scenes"
_CRASH = "--stride 5 --again 0 --kills 0 --scenes"
_TOGETHER = "--runs 5 --other-runs 0 --no-read-only --scenes"


def _fsync_of(is_flushed: Callable[[int], bool]) -> None:
    flush = os.fsync
    put(os, fsync=lambda fd: flush(fd) if is_flushed(os.fstat(fd).st_mode) else None)


@sabotage("files are not flushed", "power_loss", f"{_POWER} build report", "unsound")
def _no_file_flushed() -> None:
    _fsync_of(stat.S_ISDIR)


@sabotage("folders are not flushed", "power_loss", f"{_POWER} build", "lost")
def _no_folder_flushed() -> None:
    _fsync_of(stat.S_ISREG)


@sabotage(
    "a flush that failed is overlooked",
    "power_loss",
    "--draws 0 --stride 5 --atomic-renames --scenes finish",
    "unsound",
)
def _failed_flush_overlooked() -> None:
    flush = os.fsync

    def overlook(fd: int) -> None:
        with contextlib.suppress(OSError):
            flush(fd)

    put(os, fsync=overlook)


@sabotage("a report is written in its place", "crash", "--again 0 --kills 0 --scenes report", "unsound")
def _report_in_place() -> None:
    put(report_write, replace_file=lambda path, data: path.write_bytes(data))


@sabotage("chunks are not listed", "crash", f"{_CRASH} build", "recomputed")
def _no_chunk_listed() -> None:
    put(writer, append_line=lambda path, line: None)


@sabotage("the manifest says when it was written", "crash", f"{_CRASH} finish", "differ")
def _moment_in_manifest() -> None:
    finish = writer.IndexWriter.finish
    put(writer.IndexWriter, finish=lambda self, info=None: finish(self, {"at": time.time_ns()}))


@sabotage("what is left over stays", "crash", f"{_CRASH} resume", "differ")
def _leavings_stay() -> None:
    put(writer, remove_stale=lambda folder: None)


@sabotage(
    "errors of the disk have no type", "disk_faults", "--stride 9 --step 40960 --scenes build", "untyped"
)
def _untyped() -> None:
    put(writer, store_errors=contextlib.nullcontext)


@sabotage("a short write is taken for a whole one", "disk_faults", "--step 40960 --scenes build", "untyped")
def _short_write() -> None:
    def write_once(fd: int, data: bytes | memoryview, offset: int | None = None) -> None:
        os.write(fd, data) if offset is None else os.pwrite(fd, data, offset)

    put(durable, write_all=write_once)


@sabotage("one temporary name for all", "concurrency", f"{_TOGETHER} build", "failed")
def _one_temporary_name() -> None:
    put(durable, temporary_path=lambda target: target.with_name(f"{target.name}.partial"))


@sabotage("the living are taken for dead", "concurrency", f"{_TOGETHER} build", "failed")
def _living_taken_for_dead() -> None:
    put(durable, _is_live=lambda name: False)


@sabotage(
    "a resumed build trusts its chunks",
    "corruption",
    "--bits 1 --stride 50 --implementation reference",
    "differ",
)
def _chunks_trusted() -> None:
    put(writer.IndexWriter, _is_whole=lambda self, chunk, entry: True)


@sabotage(
    "checksums are not compared", "corruption", "--bits 1 --stride 50 --implementation native", "first_missed"
)
def _nothing_compared() -> None:
    put(IndexReader, verify=lambda self: None)


@sabotage("a report that was not written is no error", "cli_faults", "--commands diagnose --tries 6", "wrong")
def _unwritten_report() -> None:
    replace = durable.replace_file

    def overlook(path: Path, data: bytes) -> None:
        with contextlib.suppress(OSError):
            replace(path, data)

    put(report_write, replace_file=overlook)


@sabotage("a manifest is believed", "manifests", "--examples 300", "AssertionError")
def _manifest_believed() -> None:
    put(manifest, _check=lambda manifest: None)


@sabotage("JSON may nest as deep as it likes", "documents", "--every 7", "broken")
def _nested_json() -> None:
    put(jsonvalue, MAX_DEPTH=1 << 30)


@sabotage("a block is mapped whole", "memory_limit", "--quick", "StoreError")
def _mapped_whole() -> None:
    put(stored_rows, share_of_what_is_left=lambda most: 1 << 62)


def play(name: str) -> None:
    """Put a fault into this process, and run the script that should find it."""
    chosen = SABOTAGES[name]
    chosen.apply()
    sys.argv = [chosen.script, *chosen.arguments]
    sys.exit(importlib.import_module(f"tests.stress.{chosen.script}").main())


def found_by(name: str, ops: str = "reference") -> list[str]:
    """What a fault led its script to say, in a process of its own; nothing where it went by unnoticed."""
    chosen = SABOTAGES[name]
    done = subprocess.run(
        [sys.executable, "-m", "tests.stress.sabotage", "--play", name],
        cwd=ROOT,
        env={**os.environ, "GRADIAN_OPS": ops, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 0:
        return []
    if chosen.finds.endswith("Error"):
        return [line for line in done.stderr.splitlines() if chosen.finds in line]
    if not done.stdout:
        raise RuntimeError(done.stderr)
    figures = json.loads(done.stdout)
    parts = [figures, *(part for part in figures.values() if isinstance(part, dict))]
    return [str(one) for part in parts for one in _listed(part.get(chosen.finds))]


def _listed(found: Any) -> list[Any]:
    # Of chunks computed again, one is no fault.
    return found if isinstance(found, list) else [f"{found} chunks"] if found and found > 1 else []


def main() -> None:
    """Play one, or all and print what was found."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="default: all")
    parser.add_argument("--play", choices=SABOTAGES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.play:
        syscalls.stand_between("tests.stress.sabotage")
        play(options.play)
    found = {name: found_by(name) for name in options.names or SABOTAGES}
    print(
        json.dumps(
            {
                name: {"found": len(lines), "first": [line[:300] for line in lines[:1]]}
                for name, lines in found.items()
            },
            indent=1,
        )
    )
    sys.exit(0 if all(found.values()) else 1)


if __name__ == "__main__":
    main()
