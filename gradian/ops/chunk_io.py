"""Gradient rows in and out of a chunk file: written in place with their squared norms, mapped tile by tile.

Both implementations write the same bytes and give the same norms, so which one ran leaves no trace in an
index. Nothing here imports torch: the store is read by commands that do without it.
"""

from __future__ import annotations

import mmap
import os
import sys
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from gradian.ops._dispatch import Op, native
from gradian.types import FloatArray, IntArray

RowDtype: TypeAlias = Literal["float32", "float16", "bfloat16"]
Rows: TypeAlias = npt.NDArray[Any]

LANES = 16
"""Running sums of a squared norm; see `squared_norms`."""
READ_AHEAD_BYTES = 64 << 20
"""How far ahead of the reader the disk is asked."""

# numpy has no bfloat16: its bits come and go as uint16.
_NUMPY: dict[str, str] = {"float32": "<f4", "float16": "<f2", "bfloat16": "<u2"}
# Few pages of a map are ever written to: a system that counts all of them as memory would refuse large ones.
_MAP_NORESERVE: int = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)
# Numbers widened to float64 at a time.
_PIECE = 1 << 18


@dataclass(frozen=True)
class RowTable:
    """Where the rows of a chunk lie in its file.

    Attributes:
        rows: rows of every block.
        starts: per block, the byte of the file that its first row begins at.
        widths: per block, the numbers in a row.
        dtype: storage dtype.
    """

    rows: int
    starts: tuple[int, ...]
    widths: tuple[int, ...]
    dtype: RowDtype


class RowWriter(Protocol):
    """Writes rows of one chunk."""

    def write(
        self, fd: int, first_block: int, rows: IntArray, blocks: list[Rows], sq_norms: FloatArray
    ) -> None:
        """Write the same rows of neighbouring blocks in place.

        Args:
            fd: the chunk's file, its space allocated; its position is neither used nor moved.
            first_block: the block that the first of `blocks` belongs to.
            rows: int64 [b], rows within the chunk, all different, in any order.
            blocks: per block C-contiguous [b, width], as stored (bit for bit; bfloat16 as uint16) or in
                float32, which is rounded to the storage dtype: ties to even, NaN quiet with its sign and
                the top of its payload.
            sq_norms: float64 [rows, blocks]; the `squared_norms` of what was stored are put here.

        Raises:
            OSError: the system refuses; some of the rows may be written.
        """


class RowReader(Protocol):
    """Maps rows of chunk files. A map outlives the reader and the descriptor.

    A file that is cut short while a map of it lives ends the process that touches the missing part (SIGBUS).
    """

    @property
    def reads_ahead(self) -> bool:
        """Whether `map_rows` brings the rows in, in the background, so that mapping tiles early pays."""

    def map_rows(self, fd: int, offset: int, rows: int, width: int) -> Rows:
        """Return [rows, width] at a byte of a file, in the storage dtype: a view that may be written to.

        Raises:
            OSError: the system refuses.
            ValueError: the rows are not inside the file.
        """

    def warm(self, fd: int, offset: int, size: int) -> None:
        """Bring bytes of a file into the page cache, in the background."""

    def close(self) -> None:
        """End what happens in the background; `map_rows` works on."""


class ChunkIo(Protocol):
    """One implementation of both."""

    def writer(self, table: RowTable) -> RowWriter:
        """Return a writer of one chunk."""

    def reader(self, dtype: RowDtype, read_ahead: int = READ_AHEAD_BYTES) -> RowReader:
        """Return a reader of rows of a dtype that asks the disk for at most `read_ahead` bytes ahead."""


OP = Op[Any]("chunk_io", stored=True)


def chunk_io(impl: str | None = None) -> ChunkIo:
    """Return the implementation to use; None leaves the choice to `gradian.ops._dispatch`.

    Raises:
        OpUnavailableError: an explicit choice cannot run here.
    """
    chosen: ChunkIo = OP.choose_on_host(impl)()
    return chosen


def squared_norms(stored: Rows) -> FloatArray:
    """Return the squared norm of each row, float64 [b]: the definition, in one fixed order of additions.

    Element i of a row is added to lane i mod 16; in the end lane l takes lane l + 8, then l + 4, l + 2, l + 1.
    The squares are exact in float64. A norm that is not a number is numpy's own NaN.

    Args:
        stored: [b, d] float32, float16, or bfloat16 as uint16.
    """
    norms: FloatArray = np.empty(len(stored), dtype=np.float64)
    step = max(1, _PIECE // stored.shape[1])
    for first in range(0, len(stored), step):
        norms[first : first + step] = _squared_norms(stored[first : first + step])
    return norms


def _squared_norms(stored: Rows) -> FloatArray:
    numbers = _from_bfloat16(stored) if stored.dtype == np.uint16 else stored
    count, width = numbers.shape
    whole = width - width % LANES
    with np.errstate(all="ignore"):
        squares = numbers.astype(np.float64)
        np.square(squares, out=squares)
        # numpy adds along an axis that is not the last one term after the other.
        lanes = squares[:, :whole].reshape(count, -1, LANES).sum(axis=1)
        lanes[:, : width - whole] += squares[:, whole:]
        half = LANES // 2
        while half:
            lanes = lanes[:, :half] + lanes[:, half:]
            half //= 2
    norms: FloatArray = lanes[:, 0]
    norms[np.isnan(norms)] = np.nan
    return norms


def narrowed(values: Rows, dtype: RowDtype) -> Rows:
    """Return float32 numbers in a 16-bit storage dtype; see `RowWriter.write` for the rounding."""
    bits = values.view(np.uint32)
    nan = np.isnan(values)
    if dtype == "bfloat16":
        rounded = ((bits + np.uint32(0x7FFF) + (bits >> 16 & 1)) >> 16).astype(np.uint16)
        return np.where(nan, (bits >> 16 | 0x40).astype(np.uint16), rounded)
    with np.errstate(all="ignore"):
        half = values.astype(np.float16).view(np.uint16)
    # Where float16 is not a type of the processor, numpy keeps other bits of a NaN.
    quiet = (bits >> 16 & 0x8000 | 0x7E00 | bits >> 13 & 0x3FF).astype(np.uint16)
    return np.where(nan, quiet, half).view(np.float16)


def _from_bfloat16(stored: Rows) -> Rows:
    return (stored.astype(np.uint32) << 16).view(np.float32)


def _write_at(fd: int, data: memoryview, offset: int) -> None:
    while len(data):
        done = os.pwrite(fd, data, offset)
        data, offset = data[done:], offset + done


@dataclass(frozen=True)
class _ReferenceWriter:
    table: RowTable

    def write(
        self, fd: int, first_block: int, rows: IntArray, blocks: list[Rows], sq_norms: FloatArray
    ) -> None:
        table = self.table
        # Neighbouring rows go out in one call.
        edges = [0, *(np.flatnonzero(np.diff(rows) != 1) + 1).tolist(), len(rows)]
        for block, values in enumerate(blocks, first_block):
            as_stored = values.itemsize == np.dtype(_NUMPY[table.dtype]).itemsize
            stored = values if as_stored else narrowed(values, table.dtype)
            for first, last in pairwise(edges):
                if first < last:
                    data = stored[first:last].reshape(-1).view(np.uint8).data
                    row_bytes = table.widths[block] * stored.itemsize
                    _write_at(fd, data, table.starts[block] + int(rows[first]) * row_bytes)
            sq_norms[rows, block] = squared_norms(stored)


@dataclass(frozen=True)
class _ReferenceReader:
    dtype: RowDtype

    @property
    def reads_ahead(self) -> bool:
        return False

    def map_rows(self, fd: int, offset: int, rows: int, width: int) -> Rows:
        numbers = np.dtype(_NUMPY[self.dtype])
        lead = offset % mmap.ALLOCATIONGRANULARITY
        size = lead + rows * width * numbers.itemsize
        flags = mmap.MAP_PRIVATE | _MAP_NORESERVE
        area = mmap.mmap(fd, size, flags, mmap.PROT_READ | mmap.PROT_WRITE, offset=offset - lead)
        return np.frombuffer(area, numbers, rows * width, lead).reshape(rows, width)

    def warm(self, fd: int, offset: int, size: int) -> None:
        return

    def close(self) -> None:
        return


@OP.implementation("reference")
class ReferenceChunkIo:
    """numpy and mmap."""

    def writer(self, table: RowTable) -> RowWriter:
        """See `ChunkIo`."""
        return _ReferenceWriter(table)

    def reader(self, dtype: RowDtype, read_ahead: int = READ_AHEAD_BYTES) -> RowReader:
        """See `ChunkIo`; reads nothing ahead."""
        return _ReferenceReader(dtype)


@OP.implementation("native")
class NativeChunkIo:
    """The compiled extension: `csrc/chunk_writer.cpp`, `csrc/chunk_reader.cpp`."""

    def writer(self, table: RowTable) -> RowWriter:
        """See `ChunkIo`."""
        writer: RowWriter = native().ChunkWriter(table.rows, table.starts, table.widths, table.dtype)
        return writer

    def reader(self, dtype: RowDtype, read_ahead: int = READ_AHEAD_BYTES) -> RowReader:
        """See `ChunkIo`."""
        reader: RowReader = native().ChunkReader(dtype, read_ahead)
        return reader
