"""What is interrupted: each scene prepares a folder, does one piece of work in it, and tells good from bad.

The work of a scene can be done again over whatever its interruption left, and must then end in the same bytes.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gradian.errors import ConfigError, GradianError, StoreError
from gradian.report import jsonfile
from gradian.report.audit import markdown
from gradian.report.write import write_audit
from gradian.store.cache import index_path
from gradian.store.format import BUILD_JOURNAL_FILE, index_id
from gradian.store.gram_cache import find_gram, write_gram
from gradian.store.reader import IndexReader
from gradian.store.writer import open_writer
from tests.report.audit.samples import faulty
from tests.store.building import BLOCKS, CHUNK, INPUTS, N, build, gradients, write_chunk

N_CHUNKS = -(-N // CHUNK)


class Tally:
    """Chunks that were computed, counted across the processes that this one forks."""

    def __init__(self) -> None:
        self._shared = mmap.mmap(-1, 8)

    def add(self) -> None:
        """Count one."""
        self._shared[:] = struct.pack("q", self.value + 1)

    def clear(self) -> None:
        """Begin anew."""
        self._shared[:] = bytes(8)

    @property
    def value(self) -> int:
        """The count."""
        return int(struct.unpack("q", self._shared[:])[0])


computed = Tally()


@dataclass(frozen=True)
class Scene:
    """A piece of work that may be interrupted anywhere.

    Attributes:
        work: does it, in a folder.
        is_sound: whether what lies there is whole and right, or is not taken for whole.
        prepare: makes the folder as the work finds it.
        error: the kind of its errors.
        chunks: chunks that it computes when nothing disturbs it.
        total_chunks: chunks of the index, those that were there before included.
    """

    work: Callable[[Path], object]
    is_sound: Callable[[Path], bool]
    prepare: Callable[[Path], object] = lambda folder: None
    error: type[GradianError] = StoreError
    chunks: int = 0
    total_chunks: int = 0


def build_counting(
    cache: Path, *, force: bool = False, n: int = N, chunk_size: int = CHUNK, batch: int = 3
) -> None:
    """Build the index of `building`, or go on with it, and count the chunks that are computed."""
    with open_writer(cache, INPUTS, BLOCKS, n, "float32", chunk_size, force=force) as writer:
        for k in writer.pending:
            computed.add()
            write_chunk(writer, k, gradients(n=n), batch, whole=k % 2 == 0)
        writer.finish({"findings": []})


def build_part(cache: Path, chunks: tuple[int, ...], chunk_size: int = CHUNK) -> None:
    """Build some chunks of the index of `building` and stop."""
    with open_writer(cache, INPUTS, BLOCKS, N, "float32", chunk_size) as writer:
        for k in chunks:
            write_chunk(writer, k, gradients())


def index_folder(cache: Path) -> Path:
    """Where the index of `building` lies."""
    return index_path(cache, index_id(INPUTS))


def index_is_sound(cache: Path) -> bool:
    """Whether the index does not open as a whole one, or is right in every byte."""
    try:
        reader = IndexReader.open(index_folder(cache))
    except GradianError:
        return True
    try:
        reader.verify()
    except GradianError:
        return False
    return all(
        np.array_equal(np.concatenate([tile for _, tile in reader.tiles(block)]), rows)
        for block, rows in enumerate(gradients(n=reader.n))
    )


def _interrupted(cache: Path, chunks: tuple[int, ...]) -> None:
    # Some chunks, a torn journal line, and what dead writers left.
    build_part(cache, chunks)
    path = index_folder(cache)
    with open(path / BUILD_JOURNAL_FILE, "ab") as journal:
        journal.write(b'{"bytes":12')
    (path / "chunks/000002.safetensors.0badc0de-1-1-00000000.partial").write_bytes(b"x")
    (path / "manifest.json.0badc0de-1-1-00000000.partial").write_bytes(b"x")
    (path.parent / "trash.0badc0de-1-1-00000000.partial").mkdir()


def _write_gram(cache: Path) -> None:
    rows = gradients()
    reader = IndexReader.open(index_folder(cache))
    write_gram(reader, lambda block: rows[block] @ rows[block].T, lambda message: None)


def _gram_is_sound(cache: Path) -> bool:
    rows = gradients()
    reader = IndexReader.open(index_folder(cache), verify="checksums")
    found = find_gram(reader, lambda message: None)
    return found is None or all(
        np.array_equal(found.block(block), rows[block] @ rows[block].T) for block in range(len(BLOCKS))
    )


def _stale_gram(cache: Path) -> None:
    # Of a build with other chunks: not to be believed, and to be replaced.
    elsewhere = cache.with_name(f"{cache.name}.other")
    build(elsewhere, chunk_size=3)
    _write_gram(elsewhere)
    build(cache)
    (index_folder(elsewhere) / "derived").rename(index_folder(cache) / "derived")


OLD = b"old"


def _new_report() -> Mapping[str, bytes]:
    report = faulty()
    return {"audit.json": jsonfile.render(report).encode(), "audit.md": markdown.render(report).encode()}


def _old_report(folder: Path) -> None:
    for name in _new_report():
        (folder / name).write_bytes(OLD)


def _report_is_sound(folder: Path) -> bool:
    return all((folder / name).read_bytes() in (OLD, new) for name, new in _new_report().items())


SCENES: Mapping[str, Scene] = {
    "build": Scene(build_counting, index_is_sound, chunks=N_CHUNKS, total_chunks=N_CHUNKS),
    "resume": Scene(
        build_counting,
        index_is_sound,
        lambda cache: _interrupted(cache, (1, 0)),
        chunks=N_CHUNKS - 2,
        total_chunks=N_CHUNKS,
    ),
    "finish": Scene(
        build_counting, index_is_sound, lambda cache: _interrupted(cache, (0, 2, 1)), total_chunks=N_CHUNKS
    ),
    "other chunk size": Scene(
        build_counting,
        index_is_sound,
        lambda cache: build_part(cache, (0, 4), 2),
        chunks=N_CHUNKS,
        total_chunks=N_CHUNKS,
    ),
    "gram": Scene(_write_gram, _gram_is_sound, _stale_gram),
    "report": Scene(lambda folder: write_audit(faulty(), folder), _report_is_sound, _old_report, ConfigError),
}
