"""Builds an index chunk by chunk, so that a killed build goes on where it was and ends in the same bytes.

What is on the disk at any moment is one of: nothing, whole chunks that the build's journal lists, temporary
files, or the whole index. A chunk is listed after its bytes and its name are flushed; the manifest comes last,
after every file was read back from the medium and compared with its checksum (this is the "first read after a
build", done once, here).

The journal of the build is a file of its own. What belongs to a whole index is only ever replaced by the same
bytes, so a second process that is still building, where locks do nothing, never disturbs a reader of it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gradian.errors import CorruptIndexError, IncompleteIndexError, StoreError
from gradian.jsonvalue import parse_strict_json
from gradian.ops.chunk_io import RowTable, chunk_io
from gradian.store.cache import find_index, index_path
from gradian.store.durable import (
    PartialFile,
    append_line,
    create_or_read,
    discard_folder,
    make_folder,
    make_own_folder,
    read_file,
    remove_stale,
    replace_file,
    store_errors,
    sync_folder,
)
from gradian.store.format import (
    BUILD_JOURNAL_FILE,
    CHUNKS_FOLDER,
    EXAMPLES_FILE,
    EXAMPLES_PREFIX,
    JOURNAL_FILE,
    MANIFEST_FILE,
    SCHEMA_VERSION,
    Layout,
    StorageDtype,
    TensorSlot,
    checksum_file,
    index_id,
)
from gradian.store.lock import index_lock
from gradian.store.manifest import (
    MAX_MANIFEST_BYTES,
    ChunkEntry,
    Manifest,
    entry_problem,
    journal_line,
    parse_entry,
)
from gradian.store.reader import IndexReader, checked_file, read_tensor
from gradian.types import BlockSpec, BoolArray, FloatArray, IntArray

DEFAULT_WAIT_SECONDS = 6 * 3600.0
# Where locks do nothing, each process that builds the index lists each chunk.
_MOST_LINES_A_CHUNK = 16
_MOST_LINES = 1000
# Chunks and blocks of which a manifest has room for sure.
_FEW_PARTS = 10_000
_NO_CHECKSUM = "0" * 16


@contextmanager
def open_writer(
    cache_dir: str | Path,
    inputs: Mapping[str, Any],
    blocks: Sequence[BlockSpec],
    n: int,
    dtype: StorageDtype,
    chunk_size: int,
    force: bool = False,
    *,
    wait_seconds: float = DEFAULT_WAIT_SECONDS,
    on_message: Callable[[str], None] | None = None,
) -> Iterator[IndexWriter]:
    """Build, or go on building, the index of these inputs, alone.

    Args:
        cache_dir: the cache folder.
        inputs: everything that changes a number; JSON values. Their hash is the index id.
        blocks: the blocks in the order of the gradient vector.
        n: number of examples.
        dtype: storage dtype.
        chunk_size: examples in a chunk.
        force: remove what is there and build anew.
        wait_seconds: longest wait for another process that writes this index.
        on_message: told, in a sentence, what takes long.

    Yields:
        A writer; `finished` when the index is already whole, perhaps by the process just waited for.

    Raises:
        IndexLockedError: another process was not done in time.
        CorruptIndexError: the index there is damaged.
        DiskSpaceError: no space.
        StoreError: the cache cannot be written.
        ValueError: an index of that shape cannot exist.
    """
    layout = Layout(index_id(inputs), tuple(blocks), n, dtype, chunk_size)
    path = index_path(cache_dir, layout.index)
    say = on_message or (lambda message: None)
    # A whole index needs no lock, so that a read-only cache serves it.
    whole = None if force else _find_same(cache_dir, layout)
    if whole is not None:
        yield IndexWriter(path, layout, inputs, say, whole)
        return
    before = _stamp(path)
    with store_errors(path):
        make_folder(path.parent)
    with index_lock(path, wait_seconds, on_message) as waited:
        # With `force`, what another process built while this one waited is new enough.
        if force and not (waited and _stamp(path) != before):
            with store_errors(path):
                discard_folder(path)
        yield IndexWriter(path, layout, inputs, say, _find_same(cache_dir, layout))


class IndexWriter:
    """Writes one index; made by `open_writer`.

    Attributes:
        path: the index folder.
        id: the index id.
        finished: whether the index is whole.
    """

    def __init__(
        self,
        path: Path,
        layout: Layout,
        inputs: Mapping[str, Any],
        say: Callable[[str], None],
        whole: IndexReader | None,
    ) -> None:
        self.path = path
        self.id = layout.index
        self._layout = layout
        self._inputs = inputs
        self._whole = whole
        self._entries: dict[int, ChunkEntry] = {}
        if whole is None:
            self._check_parts()
            with store_errors(path):
                self._entries = self._resume(say)

    @property
    def finished(self) -> bool:
        """Whether the index is whole: there is nothing to write, and `finish` only opens it."""
        return self._whole is not None

    @property
    def pending(self) -> tuple[int, ...]:
        """Numbers of the chunks that are still to be written."""
        if self.finished:
            return ()
        return tuple(k for k in range(self._layout.n_chunks) if k not in self._entries)

    @property
    def bytes_left(self) -> int:
        """Bytes that the pending chunks and the per-example file will take."""
        if self.finished:
            return 0
        return sum(self._layout.chunk_bytes(k) for k in self.pending) + self._layout.examples.size

    def chunk_rows(self, chunk: int) -> range:
        """The global row numbers of a chunk."""
        return self._layout.rows(chunk)

    @contextmanager
    def chunk(self, chunk: int) -> Iterator[ChunkWriter]:
        """Write one chunk: committed when the block ends cleanly, discarded when it raises.

        Raises:
            DiskSpaceError: no space; raised before the first row is written.
            StoreError: the disk refuses.
            ValueError: a row of a block or of the example values was never written.
        """
        if chunk in self._entries or self.finished:
            raise ValueError(f"chunk {chunk} is already committed")
        where = self.path / self._layout.chunk_file(chunk)
        with store_errors(where):
            partial = PartialFile(where, self._layout.chunk_bytes(chunk))
        try:
            writer = ChunkWriter(partial, self._layout, chunk)
            yield writer
            with store_errors(where):
                checksum = writer.complete()
                entry = self._entry(chunk, checksum)
                if not self._already_whole():
                    partial.commit()
                    append_line(self.path / BUILD_JOURNAL_FILE, journal_line(entry, self.id))
            self._entries[chunk] = entry
        finally:
            partial.discard()

    def finish(self, info: Mapping[str, Any] | None = None) -> IndexReader:
        """Commit the index: per-example file, check of every byte on the medium, manifest.

        Args:
            info: kept in the manifest beside the hashed inputs; JSON values that follow from the inputs.
                No times and no host names: two builds of one index are the same bytes.

        Raises:
            IncompleteIndexError: chunks are pending.
            CorruptIndexError: the disk does not give back what was written; the next build repairs it.
            DiskSpaceError: no space.
            StoreError: the disk refuses.
        """
        if self._whole is None:
            # Locks may do nothing on this file system: what another process finished stands.
            with store_errors(self.path):
                other = _find_same(self.path.parents[1], self._layout) if self._already_whole() else None
                if other is not None:
                    self._end_build_journal()
            self._whole = other or self._finish(info or {})
        return self._whole

    def _finish(self, info: Mapping[str, Any]) -> IndexReader:
        if self.pending:
            raise IncompleteIndexError(
                "the index is not whole yet",
                where=str(self.path),
                found=f"{len(self.pending)} chunks pending",
            )
        layout = self._layout
        with store_errors(self.path):
            examples = self._write_examples()
            chunks = [self._entries[k] for k in range(layout.n_chunks)]
            text = self._manifest(chunks, examples, info).to_json().encode()
            manifest = Manifest.from_json(text)
            # From here on a resumed build reads this one.
            replace_file(self.path / JOURNAL_FILE, manifest.journal())
            folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
            try:
                reader = IndexReader(self.path, manifest, folder)
            finally:
                os.close(folder)
            reader.verify_data(cold=True)
            remove_stale(self.path)
            remove_stale(self.path / CHUNKS_FOLDER)
            # Even if nothing was: who was killed here may not have flushed what it removed, and beside the
            # manifest nobody would clear it away when it comes back.
            sync_folder(self.path / CHUNKS_FOLDER)
            self._end_build_journal()
            replace_file(self.path / MANIFEST_FILE, text)
        return reader

    def _end_build_journal(self) -> None:
        """Remove the journal of the build, before the manifest: beside that, nobody would clear it away."""
        with suppress(FileNotFoundError):
            os.unlink(self.path / BUILD_JOURNAL_FILE)
        sync_folder(self.path)

    def _check_parts(self) -> None:
        """Refuse, before anything is computed, what has more chunks and blocks than a manifest may list.

        Raises:
            StoreError: it has.
        """
        layout = self._layout
        if layout.n_chunks + len(layout.blocks) < _FEW_PARTS:
            return
        try:
            chunks = [self._entry(k, _NO_CHECKSUM) for k in range(layout.n_chunks)]
            Manifest.from_json(self._manifest(chunks, self._examples_entry(_NO_CHECKSUM), {}).to_json())
        except CorruptIndexError:
            raise StoreError(
                "the index would have more parts than its manifest can list",
                where=str(self.path),
                found=f"{layout.n_chunks} chunks and {len(layout.blocks)} blocks",
                fix="set grads.chunk_size higher, or choose fewer modules with grads.module_filter",
            ) from None

    def _manifest(
        self, chunks: Sequence[ChunkEntry], examples: ChunkEntry, info: Mapping[str, Any]
    ) -> Manifest:
        layout = self._layout
        return Manifest(
            schema_version=SCHEMA_VERSION,
            id=layout.index,
            inputs=self._inputs,
            info=info,
            blocks=layout.blocks,
            n=layout.n,
            dtype=layout.dtype,
            chunk_size=layout.chunk_size,
            chunks=tuple(chunks),
            examples=examples,
        )

    def _write_examples(self) -> ChunkEntry:
        """Join the per-example tensors of the chunks, read back from them."""
        where, target = self.path / EXAMPLES_FILE, self._layout.examples
        partial = PartialFile(where, target.size)
        try:
            partial.write_at(target.header, 0)
            folder = os.open(self.path / CHUNKS_FOLDER, os.O_RDONLY | os.O_DIRECTORY)
            try:
                for k in range(self._layout.n_chunks):
                    source, name = self._layout.chunk(k), self._layout.chunk_name(k)
                    # Read first, write after: a full disk must not look like a file that cannot be read.
                    with checked_file(folder, name, self.path / CHUNKS_FOLDER / name, source) as fd:
                        parts = {
                            slot: read_tensor(fd, source, source.slots[EXAMPLES_PREFIX + slot.name])
                            for slot in target.slots.values()
                        }
                    first = self._layout.rows(k).start
                    for slot, values in parts.items():
                        partial.write_at(values.tobytes(), target.offset(slot) + first * slot.row_bytes)
            finally:
                os.close(folder)
            checksum = partial.checksum()
            partial.commit()
        finally:
            partial.discard()
        return self._examples_entry(checksum)

    def _entry(self, chunk: int, checksum: str) -> ChunkEntry:
        rows, layout = self._layout.rows(chunk), self._layout
        return ChunkEntry(
            layout.chunk_file(chunk), (rows.start, rows.stop), layout.chunk_bytes(chunk), checksum
        )

    def _examples_entry(self, checksum: str) -> ChunkEntry:
        return ChunkEntry(EXAMPLES_FILE, (0, self._layout.n), self._layout.examples.size, checksum)

    def _resume(self, say: Callable[[str], None]) -> dict[int, ChunkEntry]:
        """Bring the folder to a known state; give the chunks that are whole."""
        chunks = self.path / CHUNKS_FOLDER
        make_folder(self.path)
        with store_errors(chunks):
            make_own_folder(chunks)
        for folder in (self.path.parent, self.path, chunks):
            remove_stale(folder)
        journal = self.path / BUILD_JOURNAL_FILE
        with store_errors(journal):
            written = [create_or_read(journal, MAX_MANIFEST_BYTES)]
        with store_errors(self.path / JOURNAL_FILE), suppress(FileNotFoundError):
            written.append(read_file(self.path / JOURNAL_FILE, MAX_MANIFEST_BYTES))
        listed = {k: entry for data in written for k, entry in read_journal(data, self._layout).items()}
        if listed:
            say(
                f"an earlier build of index {self.id} was interrupted: checking its {len(listed)} committed chunks"
            )
        entries = {k: entry for k, entry in sorted(listed.items()) if self._is_whole(k, entry)}
        # Chunks of another chunk_size are no part of this index.
        names = {self._layout.chunk_name(k) for k in range(self._layout.n_chunks)}
        for name in sorted(set(os.listdir(chunks)) - names):
            if name.endswith(".safetensors"):
                with suppress(FileNotFoundError):
                    os.unlink(chunks / name)
        if any(written):
            # Written anew even if it is right: who wrote it may have been killed before it was flushed.
            replace_file(journal, b"".join(journal_line(entry, self.id) for entry in entries.values()))
        return entries

    def _is_whole(self, chunk: int, entry: ChunkEntry) -> bool:
        name = self._layout.chunk_name(chunk)
        folder = os.open(self.path / CHUNKS_FOLDER, os.O_RDONLY | os.O_DIRECTORY)
        try:
            where = self.path / CHUNKS_FOLDER / name
            with checked_file(folder, name, where, self._layout.chunk(chunk)) as fd:
                return checksum_file(fd) == entry.checksum
        except StoreError:
            # Missing, damaged or unreadable: it is written again.
            return False
        finally:
            os.close(folder)

    def _already_whole(self) -> bool:
        return (self.path / MANIFEST_FILE).exists()


class ChunkWriter:
    """Takes the rows of one chunk in any order; made by `IndexWriter.chunk`."""

    def __init__(self, partial: PartialFile, layout: Layout, chunk: int) -> None:
        self._partial = partial
        self._rows = layout.rows(chunk)
        self._layout = layout
        self._file = layout.chunk(chunk)
        count, blocks = len(self._rows), len(layout.blocks)
        slots = [self._file.slots[block.name] for block in layout.blocks]
        starts = tuple(self._file.offset(slot) for slot in slots)
        widths = tuple(block.size for block in layout.blocks)
        self._writer = chunk_io().writer(RowTable(count, starts, widths, layout.dtype))
        self._written: BoolArray = np.zeros((count, blocks), dtype=np.bool_)
        self._examples_written: BoolArray = np.zeros(count, dtype=np.bool_)
        self._sq_norms: FloatArray = np.zeros((count, blocks), dtype=np.float64)
        self._loss: FloatArray = np.zeros(count, dtype=np.float64)
        self._supervised: IntArray = np.zeros(count, dtype=np.int64)

    def write_rows(self, rows: IntArray, blocks: Sequence[npt.NDArray[Any]]) -> None:
        """Write the gradients of some examples in place, and note their squared norms.

        Args:
            rows: int64 [b], global row numbers within this chunk, in any order.
            blocks: one [b, d_l] array for every block, in the storage dtype (stored bit for bit) or float32
                (rounded to it, ties to even).

        Raises:
            ValueError: wrong number of blocks, shape, dtype or row, or a row that was already written.
            DiskSpaceError, StoreError: the disk refuses.
        """
        if len(blocks) != len(self._layout.blocks):
            raise ValueError(f"{len(self._layout.blocks)} blocks are wanted, not {len(blocks)}")
        self._write(0, rows, blocks)

    def write_block(self, block: int, rows: IntArray, values: npt.NDArray[Any]) -> None:
        """Write gradients of one block; see `write_rows`, which is faster for all of them."""
        if not 0 <= block < len(self._layout.blocks):
            raise IndexError(f"block {block} of {len(self._layout.blocks)}")
        self._write(block, rows, [values])

    def _write(self, first: int, rows: IntArray, blocks: Sequence[npt.NDArray[Any]]) -> None:
        numbers = {self._layout.dtype, "float32"}
        for spec, values in zip(self._layout.blocks[first:], blocks, strict=False):
            if values.dtype.name not in numbers or values.shape != (len(rows), spec.size):
                raise ValueError(
                    f"block {spec.name!r} takes {self._layout.dtype} [{len(rows)}, {spec.size}], "
                    f"not {values.dtype} {list(values.shape)}"
                )
        written = self._written[:, first : first + len(blocks)]
        local = self._local(rows, written)
        with store_errors(self._partial.target):
            contiguous = [np.ascontiguousarray(values) for values in blocks]
            self._writer.write(self._partial.fd, first, local, contiguous, self._sq_norms)
        written[local] = True

    def write_examples(self, rows: IntArray, loss: FloatArray, supervised_tokens: IntArray) -> None:
        """Note the loss (float64 [b]) and the number of target tokens (int64 [b]) of global rows (int64 [b]).

        Raises:
            ValueError: wrong lengths or row, or a row that was already noted.
        """
        local = self._local(rows, self._examples_written)
        if np.shape(loss) != np.shape(rows) or np.shape(supervised_tokens) != np.shape(rows):
            raise ValueError("rows, loss and supervised_tokens must have one length")
        self._loss[local] = loss
        self._supervised[local] = supervised_tokens
        self._examples_written[local] = True

    def complete(self) -> str:
        """Write the per-example tensors and the header; give the checksum of the file.

        Raises:
            ValueError: rows are missing.
        """
        missing = int((~self._written).sum() + (~self._examples_written).sum())
        if missing:
            raise ValueError(
                f"{missing} rows of chunk rows {self._rows.start} to {self._rows.stop} were not written"
            )
        extras: dict[str, npt.NDArray[Any]] = {
            "sq_norms": self._sq_norms,
            "loss": self._loss,
            "supervised_tokens": self._supervised,
            "row": np.arange(self._rows.start, self._rows.stop, dtype=np.int64),
        }
        for name, values in extras.items():
            slot = self._file.slots[EXAMPLES_PREFIX + name]
            self._put(slot, 0, values.astype(slot.numpy_dtype, copy=False))
        self._partial.write_at(self._file.header, 0)
        return self._partial.checksum()

    def _put(self, slot: TensorSlot, row: int, values: npt.NDArray[Any]) -> None:
        offset = self._file.offset(slot) + row * slot.row_bytes
        self._partial.write_at(values.reshape(-1).view(np.uint8).data, offset)

    def _local(self, rows: IntArray, written: BoolArray) -> IntArray:
        local = np.asarray(rows, dtype=np.int64) - self._rows.start
        if local.ndim != 1 or np.any(local < 0) or np.any(local >= len(self._rows)):
            raise ValueError(f"rows must lie in {self._rows.start} to {self._rows.stop - 1}")
        if len(np.unique(local)) != len(local) or np.any(written[local]):
            raise ValueError("a row is written twice")
        return local


def read_journal(data: bytes, layout: Layout) -> dict[int, ChunkEntry]:
    """The chunks that a journal lists, as far as it is readable and of this index; of two lines the later one.

    Of more lines than builds would have written, the first are read.
    """
    entries: dict[int, ChunkEntry] = {}
    most = _MOST_LINES + layout.n_chunks * _MOST_LINES_A_CHUNK
    for line in data.split(b"\n", most)[:most]:
        with suppress(ValueError):
            values = parse_strict_json(line, "ascii")
            if isinstance(values, dict) and values.pop("index", None) == layout.index:
                entry = parse_entry(values)
                k = entry.rows[0] // layout.chunk_size
                if k < layout.n_chunks and not _problem(layout, k, entry):
                    entries[k] = entry
    return entries


def _problem(layout: Layout, chunk: int, entry: ChunkEntry) -> str | None:
    return entry_problem(entry, layout.chunk_file(chunk), layout.rows(chunk), layout.chunk_bytes(chunk))


def _find_same(cache_dir: Path | str, layout: Layout) -> IndexReader | None:
    """The whole index of this id, which must hold the same blocks and rows; only its chunk size may differ."""
    reader = find_index(cache_dir, layout.index)
    if reader is not None and (reader.blocks, reader.n, reader.dtype) != (
        layout.blocks,
        layout.n,
        layout.dtype,
    ):
        raise StoreError(
            "the index of this id holds other rows or blocks",
            where=str(reader.path),
            found=f"{reader.n} rows, {len(reader.blocks)} blocks, {reader.dtype}",
            expected=f"{layout.n} rows, {len(layout.blocks)} blocks, {layout.dtype}",
            fix="build the index again with --force",
        )
    return reader


def _stamp(path: Path) -> tuple[int, int] | None:
    """Tells one manifest from the next."""
    try:
        found = os.stat(path / MANIFEST_FILE)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns
