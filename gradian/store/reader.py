"""Reads an index without trusting it and without writing anything.

Gradients come as memory-mapped arrays of one tile at a time, so what is mapped never grows with the index.
The maps are private (copy on write): nothing that a caller does to them reaches the file. Where the compiled
reader runs, a second thread brings in the next tiles, and the first ones of the next block.

The folder is held open: after `--force` replaces an index, a reader of the old one keeps its maps, and its
next tile is an error, never rows of the new one.
"""

from __future__ import annotations

import errno
import os
import stat
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from gradian.address_space import address_space_left, share_of_what_is_left
from gradian.errors import CorruptIndexError, GradianError, IncompleteIndexError, StoreError
from gradian.ops.chunk_io import READ_AHEAD_BYTES, chunk_io
from gradian.store.durable import read_open
from gradian.store.format import (
    BUILD_JOURNAL_FILE,
    CHUNKS_FOLDER,
    EXAMPLES_FILE,
    JOURNAL_FILE,
    MANIFEST_FILE,
    FileLayout,
    StorageDtype,
    TensorSlot,
    checksum_file,
)
from gradian.store.manifest import MAX_MANIFEST_BYTES, Manifest
from gradian.types import BlockSpec, FloatArray, IntArray

GradientArray: TypeAlias = npt.NDArray[np.floating[Any]]

_READ_BYTES = 64 << 20
# The system itself reads about this far ahead.
_WARM_BYTES = 128 << 10
_CUT_SHORT = "the file was cut short while it was read"


@dataclass(frozen=True)
class _Tile:
    """A mapped tile: its chunk and block, the file it was mapped from, and its first global row."""

    chunk: int
    block: int
    file: tuple[int, int, int]
    first: int
    rows: GradientArray


class IndexReader:
    """A whole index; made by `IndexReader.open`.

    Attributes:
        path: the index folder.
        manifest: its manifest.
    """

    def __init__(
        self, path: Path, manifest: Manifest, folder: int, read_ahead: int = READ_AHEAD_BYTES
    ) -> None:
        self.path = path
        self.manifest = manifest
        self._layout = manifest.layout
        # All or nothing: the thread that does it takes a stack and a heap of its own.
        self._read_ahead = read_ahead if share_of_what_is_left(read_ahead) == read_ahead else 0
        self._rows = chunk_io().reader(manifest.dtype, self._read_ahead)
        self._folder = os.dup(folder)
        weakref.finalize(self, os.close, self._folder)
        self._chunks = _open_inside(self._folder, CHUNKS_FOLDER, path / CHUNKS_FOLDER, os.O_DIRECTORY)
        weakref.finalize(self, os.close, self._chunks)
        for _ in self._files():
            pass

    @classmethod
    def open(
        cls,
        path: str | Path,
        verify: Literal["headers", "checksums"] = "headers",
        read_ahead: int = READ_AHEAD_BYTES,
    ) -> IndexReader:
        """Open an index and check it.

        Args:
            path: the index folder.
            verify: `headers` checks the manifest and every file's size and header; `checksums` reads every
                byte as well.
            read_ahead: bytes to bring in before their turn, rounded up to a whole tile; none where address space is
                short.

        Raises:
            IncompleteIndexError: the build has not finished.
            CorruptIndexError: a file is missing or is not what the manifest says.
            StoreError: there is no index, it cannot be read, or it has another format version.
        """
        path = Path(path)
        folder = _open_folder(path)
        try:
            data = _read_small(folder, MANIFEST_FILE, path / MANIFEST_FILE, MAX_MANIFEST_BYTES)
            if data is None and not any(
                _is_there(folder, name, path / name) for name in (BUILD_JOURNAL_FILE, JOURNAL_FILE)
            ):
                # A build that has committed nothing looks like this too.
                raise IncompleteIndexError(
                    "there is no index in this folder",
                    where=str(path),
                    expected="the folder that `gradian index` prints, <cache_dir>/index/<id>",
                )
            if data is None:
                raise IncompleteIndexError(
                    "the index was never finished",
                    where=str(path),
                    found=f"no {MANIFEST_FILE}",
                    fix="run the command that builds it again: it goes on from the last committed chunk",
                )
            reader = cls(path, Manifest.from_json(data, where=str(path / MANIFEST_FILE)), folder, read_ahead)
        finally:
            os.close(folder)
        if verify == "checksums":
            reader.verify()
        return reader

    @property
    def id(self) -> str:
        """The index id."""
        return self.manifest.id

    @property
    def n(self) -> int:
        """Number of examples."""
        return self.manifest.n

    @property
    def blocks(self) -> tuple[BlockSpec, ...]:
        """The blocks, in the order of the gradient vector."""
        return self.manifest.blocks

    @property
    def dtype(self) -> StorageDtype:
        """Format of the stored gradients."""
        return self.manifest.dtype

    @cached_property
    def sq_norms(self) -> FloatArray:
        """float64 [n, blocks]: squared norm of each stored gradient, block by block."""
        return self._example_values("sq_norms")

    @cached_property
    def loss(self) -> FloatArray:
        """float64 [n]: loss of each example."""
        return self._example_values("loss")

    @cached_property
    def supervised_tokens(self) -> IntArray:
        """int64 [n]: number of target tokens of each example."""
        return self._example_values("supervised_tokens")

    def tiles(self, block: int, max_rows: int | None = None) -> Iterator[tuple[int, GradientArray]]:
        """The stored gradients of one block, in row order.

        Args:
            block: number of the block.
            max_rows: most rows in a tile; None gives a chunk at a time.

        Yields:
            The first global row and a [rows, d_l] array in the storage dtype: a view of the file, valid for as
            long as it is kept, mapped until then. It may be written to; the file does not change. A file that
            is cut short while it is mapped ends the process that touches the missing part (SIGBUS).

        Raises:
            CorruptIndexError: a file changed since the index was opened.
            StoreError: the index was removed meanwhile.
        """
        if not 0 <= block < len(self.blocks):
            raise IndexError(f"block {block} of {len(self.blocks)}")
        if max_rows is not None and max_rows < 1:
            raise ValueError("max_rows must be at least 1")
        for tile in self._arriving(self._mapped(block, max_rows)):
            yield tile.first, tile.rows
            # Here and below: or this frame would keep the rows while the next ones are mapped.
            del tile

    def chunks(self) -> Iterator[tuple[range, Iterator[GradientArray]]]:
        """The stored gradients of all blocks, chunk after chunk: each file in the order of its bytes.

        Yields:
            The global rows of a chunk, and for each block in order a [rows, d_l] array as in `tiles`; all of them
            must be taken before the next chunk is asked for.

        Raises:
            CorruptIndexError: a file changed since the index was opened.
            StoreError: the index was removed meanwhile.
        """
        tiles = self._arriving(self._mapped_by_chunk())
        for k in range(self._layout.n_chunks):
            yield self._layout.rows(k), (tile.rows for tile in islice(tiles, len(self.blocks)))

    def _mapped(self, block: int, max_rows: int | None) -> Iterator[_Tile]:
        """The tiles of a block, each mapped when it is asked for; at the end the next block is asked for."""
        for k in range(self._layout.n_chunks):
            rows, layout = self._layout.rows(k), self._layout.chunk(k)
            step = max_rows or len(rows)
            with self._chunk(k, layout) as fd:
                for first in rows[::step]:
                    yield self._map(fd, layout, block, k, first, min(step, rows.stop - first))
        if self._rows.reads_ahead and block + 1 < len(self.blocks):
            self._warm(self.blocks[block + 1].name)

    def _mapped_by_chunk(self) -> Iterator[_Tile]:
        """All blocks of a chunk, then the next chunk, each mapped when it is asked for."""
        for k in range(self._layout.n_chunks):
            rows, layout = self._layout.rows(k), self._layout.chunk(k)
            with self._chunk(k, layout) as fd:
                for block in range(len(self.blocks)):
                    yield self._map(fd, layout, block, k, rows.start, len(rows))

    def _map(self, fd: int, layout: FileLayout, block: int, chunk: int, first: int, count: int) -> _Tile:
        slot = layout.slots[self.blocks[block].name]
        start = layout.offset(slot) + (first - self._layout.rows(chunk).start) * slot.row_bytes
        try:
            rows = self._rows.map_rows(fd, start, count, slot.shape[1])
        except OSError as error:
            raise StoreError(
                "rows of the index cannot be mapped",
                where=str(self.path / self._layout.chunk_file(chunk)),
                found=error.strerror,
                fix="raise the limit on address space (ulimit -v), or build the index with a smaller grads.chunk_size",
            ) from error
        except ValueError:
            raise _corrupt(self.path / self._layout.chunk_file(chunk), _CUT_SHORT) from None
        return _Tile(chunk, block, _identity(os.fstat(fd)), first, rows)

    def _arriving(self, tiles: Iterator[_Tile]) -> Iterator[_Tile]:
        """The same tiles read ahead; one whose file was replaced meanwhile is mapped and checked anew."""
        for tile in self._early(tiles):
            if not self._is_in_place(tile):
                layout = self._layout.chunk(tile.chunk)
                with self._chunk(tile.chunk, layout) as fd:
                    tile = self._map(fd, layout, tile.block, tile.chunk, tile.first, len(tile.rows))
            yield tile
            del tile

    def _early(self, tiles: Iterator[_Tile]) -> Iterator[_Tile]:
        """The same tiles, mapped before their turn; an error waits for its turn."""
        limit = self._read_ahead if self._rows.reads_ahead else 0
        # Where it is short, a tile that is wider than the limit is not mapped before the last one is let go.
        short = address_space_left() is not None
        coming: deque[_Tile] = deque()
        size = 0
        problem: GradianError | None = None
        try:
            for tile in tiles:
                coming.append(tile)
                size += tile.rows.nbytes
                del tile
                while coming and size - (0 if short else coming[0].rows.nbytes) >= limit:
                    size -= coming[0].rows.nbytes
                    yield coming.popleft()
        except GradianError as error:
            problem = error
        while coming:
            yield coming.popleft()
        if problem is not None:
            raise problem

    def _is_in_place(self, tile: _Tile) -> bool:
        """Whether the file that a tile was mapped from is still the chunk, and whole."""
        name = self._layout.chunk_name(tile.chunk)
        try:
            return _identity(os.stat(name, dir_fd=self._chunks, follow_symlinks=False)) == tile.file
        except OSError:
            return False

    def _warm(self, name: str) -> None:
        """Ask for the beginning of a block. What is wrong with a file is told when its turn comes."""
        left = self._read_ahead
        for k in range(self._layout.n_chunks):
            layout = self._layout.chunk(k)
            slot = layout.slots[name]
            size = min(left, slot.stop - slot.start)
            if size < _WARM_BYTES:
                return
            with suppress(GradianError), self._chunk(k, layout) as fd:
                self._rows.warm(fd, layout.offset(slot), size)
            left -= size

    def verify(self) -> None:
        """Read every byte of every file and compare it with what was written.

        Raises:
            CorruptIndexError: naming the first file that differs.
        """
        manifest = _read_small(self._folder, MANIFEST_FILE, self.path / MANIFEST_FILE, MAX_MANIFEST_BYTES)
        if manifest != self.manifest.to_json().encode():
            raise _corrupt(self.path / MANIFEST_FILE, "the manifest is not what was written")
        journal = _read_small(self._folder, JOURNAL_FILE, self.path / JOURNAL_FILE, MAX_MANIFEST_BYTES)
        if journal != self.manifest.journal():
            raise _corrupt(self.path / JOURNAL_FILE, "the journal does not list the chunks that were written")
        self.verify_data()

    def verify_data(self, *, cold: bool = False) -> None:
        """The part of `verify` that concerns the chunks and `examples.safetensors`.

        Args:
            cold: read from the medium instead of the page cache.

        Raises:
            CorruptIndexError: naming the first file that differs.
        """
        for where, fd, checksum in self._files():
            if checksum_file(fd, cold=cold) != checksum:
                raise _corrupt(where, "the checksum does not match")

    def _files(self) -> Iterator[tuple[Path, int, str]]:
        """Every data file, open, its size and header checked, and the checksum it must have."""
        for k, entry in enumerate(self.manifest.chunks):
            with self._chunk(k, self._layout.chunk(k)) as fd:
                yield self.path / entry.file, fd, entry.checksum
        with self._examples() as fd:
            yield self.path / EXAMPLES_FILE, fd, self.manifest.examples.checksum

    @contextmanager
    def _chunk(self, chunk: int, layout: FileLayout) -> Iterator[int]:
        where = self.path / self._layout.chunk_file(chunk)
        with (
            self._in_place(),
            checked_file(self._chunks, self._layout.chunk_name(chunk), where, layout) as fd,
        ):
            yield fd

    @contextmanager
    def _examples(self) -> Iterator[int]:
        where = self.path / EXAMPLES_FILE
        with self._in_place(), checked_file(self._folder, EXAMPLES_FILE, where, self._layout.examples) as fd:
            yield fd

    @contextmanager
    def _in_place(self) -> Iterator[None]:
        """Tell an index that was replaced under its reader from one that lost a file."""
        try:
            yield
        except CorruptIndexError:
            with suppress(OSError):
                if os.path.samestat(os.stat(self.path), os.fstat(self._folder)):
                    raise
            raise StoreError(
                "the index was removed or replaced while it was being read",
                where=str(self.path),
                fix="run again",
            ) from None

    def _example_values(self, name: str) -> npt.NDArray[Any]:
        with self._examples() as fd:
            layout = self._layout.examples
            return read_tensor(fd, layout, layout.slots[name])


@contextmanager
def checked_file(folder: int, name: str, where: Path, layout: FileLayout) -> Iterator[int]:
    """Open a data file of an index, its size and header compared with what they must be.

    Raises:
        CorruptIndexError: it is missing, not a regular file, or differs.
        StoreError: it cannot be read.
    """
    fd = _open_inside(folder, name, where)
    try:
        with _read_errors(where):
            if os.fstat(fd).st_size != layout.size:
                raise _corrupt(where, f"the file has {os.fstat(fd).st_size} bytes, not {layout.size}")
            if os.pread(fd, len(layout.header), 0) != layout.header:
                raise _corrupt(where, "the header is not the one of this file of this index")
            try:
                yield fd
            except EOFError:
                raise _corrupt(where, _CUT_SHORT) from None
    finally:
        os.close(fd)


def read_tensor(fd: int, layout: FileLayout, slot: TensorSlot) -> npt.NDArray[Any]:
    """A whole tensor, copied into memory.

    Raises:
        EOFError: the file ends before it does.
    """
    size = slot.stop - slot.start
    buffer = bytearray(size)
    done = 0
    while data := os.pread(fd, min(size - done, _READ_BYTES), layout.offset(slot) + done):
        buffer[done : done + len(data)] = data
        done += len(data)
    if done < size:
        raise EOFError(slot.name)
    return np.frombuffer(buffer, dtype=slot.numpy_dtype).reshape(slot.shape)


def _identity(found: os.stat_result) -> tuple[int, int, int]:
    """Tells a file from another one and from itself when it was cut short."""
    return found.st_dev, found.st_ino, found.st_size


def _open_folder(path: Path) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise StoreError(
            "there is no index here",
            where=str(path),
            found=error.strerror,
            expected="an index folder, such as .gradian/index/<id>",
            fix="build one with gradian index",
        ) from error
    except OSError as error:
        raise StoreError("the index cannot be read", where=str(path), found=error.strerror) from error


def _open_inside(folder: int, name: str, where: Path, kind: int = 0) -> int:
    """Open a file or folder that must lie in the index itself: no symbolic link, no device, no pipe."""
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | kind, dir_fd=folder)
    except FileNotFoundError:
        raise _corrupt(where, "the file is missing") from None
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.ENXIO):
            raise _corrupt(where, "it is a link or not of the right kind") from None
        raise StoreError("the index cannot be read", where=str(where), found=error.strerror) from error
    try:
        with _read_errors(where):
            regular = stat.S_ISREG(os.fstat(fd).st_mode)
        if not kind and not regular:
            raise _corrupt(where, "it is not a regular file")
    except BaseException:
        os.close(fd)
        raise
    return fd


def _is_there(folder: int, name: str, where: Path) -> bool:
    """Whether a folder has such an entry, of whatever kind."""
    with _read_errors(where):
        try:
            os.stat(name, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            return False
    return True


def _read_small(folder: int, name: str, where: Path, limit: int) -> bytes | None:
    """At most `limit` + 1 bytes of a file; None when there is none."""
    try:
        fd = _open_inside(folder, name, where)
    except CorruptIndexError:
        if _is_there(folder, name, where):
            raise
        return None
    try:
        with _read_errors(where):
            return read_open(fd, limit + 1)
    finally:
        os.close(fd)


@contextmanager
def _read_errors(where: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError("the index cannot be read", where=str(where), found=error.strerror) from error


def _corrupt(where: Path, problem: str) -> CorruptIndexError:
    return CorruptIndexError(problem, where=str(where), fix="build the index again with --force")
