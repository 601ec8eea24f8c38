"""Damage an index in every way that a disk or a careless copy can, and ask for its scores.

    python -m tests.stress.corruption [--bits 8] [--implementation native]

Each damage is done to the files of a whole index; then a scoring command's own path is taken: the session finds
the index, checks it, opens the Gram matrices and scores. What comes out is one of

    refused   an error of the store that names a damaged file
    same      the very scores of the undamaged index; right only for what is derived, and is made anew
    missed    anything else

A second round damages an index that is still being built, goes on building, and compares every file.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import shutil
import stat
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from gradian.config import Config
from gradian.engines import EngineSettings
from gradian.engines.gram import gram_matrices
from gradian.errors import StoreError
from gradian.progress import NullProgress
from gradian.query.scorer import QueryGradients, score_index
from gradian.session import Session
from gradian.store.format import BUILD_JOURNAL_FILE, canonical_json, checksum_bytes
from gradian.store.gram_cache import CHECKSUM_FILE, DERIVED_FOLDER, GRAM_FILE
from gradian.store.reader import IndexReader
from gradian.store.writer import open_writer
from gradian.types import BlockSpec
from tests.store.building import digests, memory_folder, write_pending

BLOCKS = (BlockSpec("a", ((2,),), 0), BlockSpec("b", ((3,),), 2), BlockSpec("c", ((3,),), 5))
N, CHUNK = 4, 2
INPUTS = {"seed": 0}
OTHER_INPUTS = {"seed": 1}
INDEX_FILES = (
    "chunks/000000.safetensors",
    "chunks/000001.safetensors",
    "examples.safetensors",
    "journal.jsonl",
    "manifest.json",
)
DERIVED_FILES = (f"{DERIVED_FOLDER}/{GRAM_FILE}", f"{DERIVED_FOLDER}/{CHECKSUM_FILE}")
QUERIES = QueryGradients(("q",), tuple(torch.linspace(-1, 1, spec.size)[None] for spec in BLOCKS))


def rows(seed: int) -> list[np.ndarray[Any, np.dtype[np.float16]]]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((N, spec.size)).astype(np.float16) for spec in BLOCKS]


def build(cache: Path, inputs: dict[str, Any] = INPUTS, seed: int = 0) -> Path:
    """Build an index with its Gram matrices; other seeds give other rows under one id, as a changed machine may."""
    with open_writer(cache, inputs, BLOCKS, N, "float16", CHUNK) as writer:
        write_pending(writer, rows(seed))
        reader = writer.finish()
    made = gram_matrices(reader, "always", queries=1, progress=NullProgress())
    assert made is not None
    return reader.path


def scores(cache: Path, gram: Literal["always", "never"] = "always") -> bytes:
    """The scores of an index by the path of `gradian attribute`; there is no model with which to build one."""
    config = Config(base_model="./none", adapter_path="./none", dataset="./none", cache_dir=str(cache))
    session = Session(config, NullProgress())
    session.__dict__["inputs"] = INPUTS
    reader = session.index()
    matrices = gram_matrices(reader, gram, queries=1, progress=NullProgress())
    found = score_index(reader, QUERIES, ["datainf", "graddot"], EngineSettings(), gram=matrices)
    return b"".join(found[engine].values.tobytes() for engine in sorted(found))


@dataclass
class Tally:
    """What became of the damages.

    Attributes:
        outcomes: by file or scene, how many ended how.
        missed: what went by unnoticed.
    """

    outcomes: dict[str, Counter[str]] = field(default_factory=dict)
    missed: list[str] = field(default_factory=list)

    def add(self, group: str, outcome: str, what: str) -> None:
        self.outcomes.setdefault(group, Counter())[outcome] += 1
        if outcome == "missed":
            self.missed.append(what)

    def summary(self) -> dict[str, Any]:
        totals: Counter[str] = sum(self.outcomes.values(), Counter())
        return {
            **{name: totals[name] for name in ("refused", "same", "missed")},
            "of": {group: dict(counts) for group, counts in self.outcomes.items()},
            "first_missed": self.missed[:20],
        }


class Range:
    """A whole index that can be damaged and put right again."""

    def __init__(self, folder: Path) -> None:
        self.cache = folder / "cache"
        self.elsewhere = folder / "elsewhere"
        self.path = build(self.cache)
        self.other = build(folder / "other", OTHER_INPUTS, seed=1)
        self.stale = build(folder / "stale", seed=2)
        self.good = {name: (self.path / name).read_bytes() for name in (*INDEX_FILES, *DERIVED_FILES)}
        self.wanted = scores(self.cache)
        # Where Gram matrices can be neither read nor made, the index is streamed: the same but for rounding.
        self.streamed = scores(self.cache, gram="never")
        self.tally = Tally()

    def restore(self) -> None:
        shutil.rmtree(self.path)
        if self.elsewhere.is_dir():
            shutil.rmtree(self.elsewhere)
        self.elsewhere.unlink(missing_ok=True)
        for name, data in self.good.items():
            (self.path / name).parent.mkdir(parents=True, exist_ok=True)
            (self.path / name).write_bytes(data)

    def outcome(self, derived: bool, named: Sequence[str] = ()) -> str:
        try:
            found = scores(self.cache)
        except StoreError as error:
            told = not named or any(name.split("/")[-1] in str(error) for name in named)
            return "refused" if told and not derived else "missed"
        return "same" if found in (self.wanted, self.streamed) and derived else "missed"

    def damaged_bytes(self, name: str, data: bytes, group: str, what: str) -> None:
        derived = name in DERIVED_FILES
        (self.path / name).write_bytes(data)
        self.tally.add(group, self.outcome(derived, [name]), f"{name}: {what}")
        (self.path / name).write_bytes(self.good[name])
        if derived:  # What was made anew stands in both files.
            for file in DERIVED_FILES:
                (self.path / file).write_bytes(self.good[file])


def flips(one: Range, bits: int, stride: int = 1) -> None:
    """Every byte of every file, with one or more of its bits turned over."""
    for name, good in one.good.items():
        for at in range(0, len(good), stride):
            for bit in range(bits):
                bad = bytearray(good)
                bad[at] ^= 1 << (bit if bits == 8 else (at + 3 * bit) % 8)
                one.damaged_bytes(name, bytes(bad), f"flips in {name}", f"byte {at} bit {bit}")


def lengths(one: Range, stride: int = 1) -> None:
    """Every shorter length of every file, and some longer ones."""
    for name, good in one.good.items():
        for length in range(0, len(good), stride):
            one.damaged_bytes(name, good[:length], f"truncations of {name}", f"cut to {length}")
        for tail in (b"\0", b"\n", b" ", b"{}\n", bytes(4096), good[-1:], good[:-1], good):
            one.damaged_bytes(name, good + tail, f"extensions of {name}", f"and {tail[:12]!r}")


def _signed(values: dict[str, Any]) -> bytes:
    rest = f'",{canonical_json(values)[1:]}\n'
    return f'{{"checksum":"{checksum_bytes(rest.encode())}{rest}'.encode()


def _manifest(path: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((path / "manifest.json").read_bytes())
    del values["checksum"]
    return values


def _vouch(path: Path) -> None:
    """Rewrite manifest and journal so that their checksums are those of the files that are there."""
    values = _manifest(path)
    for entry in (*values["chunks"], values["examples"]):
        entry["checksum"] = checksum_bytes((path / entry["file"]).read_bytes())
    (path / "manifest.json").write_bytes(_signed(values))
    lines = [canonical_json({**entry, "index": values["id"]}) + "\n" for entry in values["chunks"]]
    (path / "journal.jsonl").write_text("".join(lines))


def _swap(path: Path, first: str, second: str) -> None:
    kept = (path / first).read_bytes()
    shutil.copyfile(path / second, path / first)
    (path / second).write_bytes(kept)


def _swap_rows(path: Path, name: str) -> None:
    """Two rows of one chunk change places: the same numbers, the same sums."""
    data = bytearray((path / name).read_bytes())
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    for block in BLOCKS:
        begin, end = (start + offset for offset in header[block.name]["data_offsets"])
        middle = (begin + end) // 2
        data[begin:end] = data[middle:end] + data[begin:middle]
    (path / name).write_bytes(data)


FIRST, SECOND, EXAMPLES, JOURNAL, MANIFEST = INDEX_FILES
GRAM, VOUCHER = DERIVED_FILES

Scene = tuple[Callable[[Range], object], Sequence[str]]


def _with(do: Callable[[Range], object], *named: str) -> Scene:
    return do, named


def _vouched(do: Callable[[Range], object], *named: str) -> Scene:
    """The same, and the manifest and the journal agree with what is there: only headers tell."""

    def vouched(one: Range) -> None:
        do(one)
        _vouch(one.path)

    return vouched, named


def _copy(source: str, name: str, to: str = "") -> Callable[[Range], object]:
    return lambda one: shutil.copyfile(getattr(one, source) / name, one.path / (to or name))


def _replace_by(make: Callable[[Path, Path], object]) -> Callable[[str], Callable[[Range], object]]:
    """Put something else in a file's place, given the path and where the file went."""

    def scene(name: str) -> Callable[[Range], object]:
        def do(one: Range) -> None:
            target = one.path / name
            target.rename(one.elsewhere)
            make(target, one.elsewhere)

        return do

    return scene


KINDS: dict[str, Callable[[str], Callable[[Range], object]]] = {
    "a link to itself moved": _replace_by(lambda path, moved: path.symlink_to(moved)),
    "a link to nothing": _replace_by(lambda path, _: path.symlink_to("nowhere")),
    "a link in a circle": _replace_by(lambda path, _: path.symlink_to(path.name)),
    "a link to a device": _replace_by(lambda path, _: path.symlink_to("/dev/zero")),
    "a folder": _replace_by(lambda path, _: path.mkdir()),
    "a pipe": _replace_by(lambda path, _: os.mkfifo(path)),
    "a socket": _replace_by(lambda path, _: os.mknod(path, stat.S_IFSOCK | 0o600)),
    "an empty file": _replace_by(lambda path, _: path.touch()),
    "gone": _replace_by(lambda path, _: None),
}

SCENES: dict[str, Scene] = {
    "two chunks swapped": _with(lambda one: _swap(one.path, FIRST, SECOND), FIRST, SECOND),
    "two chunks swapped, all checksums right": _vouched(
        lambda one: _swap(one.path, FIRST, SECOND), FIRST, SECOND
    ),
    "one chunk twice": _with(_copy("path", FIRST, SECOND), SECOND),
    "one chunk twice, all checksums right": _vouched(_copy("path", FIRST, SECOND), SECOND),
    "a chunk of another index": _with(_copy("other", FIRST), FIRST),
    "a chunk of another index, all checksums right": _vouched(_copy("other", FIRST), FIRST),
    "the values of another index": _with(_copy("other", EXAMPLES), EXAMPLES),
    "the values of another index, all checksums right": _vouched(_copy("other", EXAMPLES), EXAMPLES),
    "a stale chunk": _with(_copy("stale", SECOND), SECOND),
    "stale values": _with(_copy("stale", EXAMPLES), EXAMPLES),
    "a stale manifest": _with(_copy("stale", MANIFEST)),
    "a stale manifest and journal": _with(
        lambda one: [_copy("stale", name)(one) for name in (MANIFEST, JOURNAL)], FIRST
    ),
    "the manifest of another index": _with(_copy("other", MANIFEST)),
    "everything but the manifest of another index": _with(
        lambda one: [_copy("other", name)(one) for name in INDEX_FILES[:-1]]
    ),
    "a whole other index under this name": _with(
        lambda one: [_copy("other", name)(one) for name in INDEX_FILES]
    ),
    "a stale journal": _with(_copy("stale", JOURNAL), JOURNAL),
    "the journal of another index": _with(_copy("other", JOURNAL), JOURNAL),
    "a journal without its last line": _with(
        lambda one: (one.path / JOURNAL).write_bytes(one.good[JOURNAL].splitlines(True)[0]), JOURNAL
    ),
    "two rows of a chunk swapped": _with(lambda one: _swap_rows(one.path, FIRST), FIRST),
    "no chunks folder": _with(lambda one: shutil.rmtree(one.path / "chunks"), "chunks"),
    **{
        f"{name} is {kind}": _with(make(name), name)
        for kind, make in KINDS.items()
        for name in (*INDEX_FILES, "chunks")
        # Without a manifest it is a build that has not finished: it would be gone on with.
        if (kind, name) != ("gone", MANIFEST)
    },
}

DERIVED_SCENES: dict[str, Callable[[Range], object]] = {
    "the Gram matrices of another index": lambda one: [_copy("other", name)(one) for name in DERIVED_FILES],
    "stale Gram matrices": lambda one: [_copy("stale", name)(one) for name in DERIVED_FILES],
    "no Gram matrices": lambda one: shutil.rmtree(one.path / DERIVED_FOLDER),
    **{
        f"{name} is {kind}": make(name)
        for kind, make in KINDS.items()
        for name in (*DERIVED_FILES, DERIVED_FOLDER)
    },
}


def scenes(one: Range) -> None:
    """Files exchanged, missing, or of another kind, some so that every checksum is right."""
    for name, (do, named) in SCENES.items():
        do(one)
        one.tally.add("scenes", one.outcome(False, named), name)
        one.restore()
    for name, do_derived in DERIVED_SCENES.items():
        do_derived(one)
        one.tally.add("scenes of what is derived", one.outcome(True), name)
        one.restore()


def unfinished(folder: Path, stride: int) -> dict[str, Any]:
    """Damage each byte of a build that was stopped before its manifest; go on; compare every file."""
    cache = folder / "unfinished"
    reader = IndexReader.open(build(cache))
    shutil.rmtree(reader.path / DERIVED_FOLDER)
    wanted = digests(cache)
    (reader.path / MANIFEST).unlink()
    (reader.path / EXAMPLES).unlink()
    (reader.path / JOURNAL).rename(reader.path / BUILD_JOURNAL_FILE)
    good = {name: (reader.path / name).read_bytes() for name in (FIRST, SECOND, BUILD_JOURNAL_FILE)}
    tried, differ = 0, []
    for name, data in good.items():
        for at in range(0, len(data), stride):
            bad = bytearray(data)
            bad[at] ^= 1 << (at % 8)
            for what, damaged in (("flip", bytes(bad)), ("cut", data[:at])):
                for file, whole in good.items():
                    (reader.path / file).write_bytes(whole)
                (reader.path / name).write_bytes(damaged)
                with (
                    contextlib.suppress(StoreError),
                    open_writer(cache, INPUTS, BLOCKS, N, "float16", CHUNK) as writer,
                ):
                    write_pending(writer, rows(0))
                    writer.finish()
                tried += 1
                if digests(cache) != wanted:
                    differ.append(f"{name}: {what} at {at}")
                for file in (MANIFEST, EXAMPLES, JOURNAL):
                    (reader.path / file).unlink(missing_ok=True)
    return {"resumed": tried, "differ": differ[:20]}


@contextlib.contextmanager
def implementation(name: str) -> Iterator[None]:
    before = os.environ.get("GRADIAN_OPS")
    os.environ["GRADIAN_OPS"] = name
    try:
        yield
    finally:
        if before is None:
            del os.environ["GRADIAN_OPS"]
        else:
            os.environ["GRADIAN_OPS"] = before


def run(name: str, *, bits: int, stride: int = 1) -> dict[str, Any]:
    """All damages, read by one implementation; the figures."""
    torch.set_num_threads(1)
    # Thousands of times the same: the Gram matrices are not used.
    logging.disable(logging.WARNING)
    start = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="gradian-corruption-", dir=memory_folder()))
    try:
        with implementation(name):
            one = Range(folder)
            scenes(one)
            lengths(one, stride)
            flips(one, bits, stride)
            assert scores(one.cache) == one.wanted
            resumed = unfinished(folder, stride)
    finally:
        logging.disable(logging.NOTSET)
        shutil.rmtree(folder)
    return {**one.tally.summary(), **resumed, "seconds": round(time.monotonic() - start, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bits", type=int, default=8, choices=range(1, 9), help="bits turned over in a byte")
    parser.add_argument("--stride", type=int, default=1, help="every how many bytes")
    parser.add_argument("--implementation", choices=["reference", "native"], action="append")
    options = parser.parse_args()
    found = {
        name: run(name, bits=options.bits, stride=options.stride)
        for name in options.implementation or ["reference", "native"]
    }
    print(json.dumps(found, indent=2))
    sys.exit(any(one["missed"] or one["differ"] for one in found.values()))


if __name__ == "__main__":
    main()
