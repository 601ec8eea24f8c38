"""The bytes of an index: file names, tensor tables, safetensors headers, checksums.

`Layout` says exactly which files an index has, how long each one is and what its header reads, from the
index id and the block list alone. So the writer allocates every file at its final size before the first
row, the disk estimate is exact, and the reader compares a header with the one that must be there instead
of parsing what it found.

    <cache_dir>/index/<id>/
        chunks/000000.safetensors   rows [k * chunk_size, ...): `@examples/*`, then one tensor a block
        examples.safetensors        the `@examples/*` tensors of all chunks, joined
        building.jsonl              one line a committed chunk, while it is built
        journal.jsonl               the same lines in the order of the chunks, when all are there
        manifest.json               written last: an index without it is not whole
        derived/                    what follows from the rest and may go at any time; see `gram_cache`

Format of a safetensors file: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil
from typing import Any, Literal

import xxhash

from gradian.types import BlockSpec

StorageDtype = Literal["float32", "float16"]

SCHEMA_VERSION = 1
MANIFEST_FILE = "manifest.json"
JOURNAL_FILE = "journal.jsonl"
BUILD_JOURNAL_FILE = "building.jsonl"
EXAMPLES_FILE = "examples.safetensors"
CHUNKS_FOLDER = "chunks"
EXAMPLES_PREFIX = "@examples/"
"""Begins the names of the per-example tensors inside a chunk; no block may be named so."""

MAX_BLOCKS = 200_000
MAX_NAME_BYTES = 1024
MAX_ROWS = 10**12
MAX_BLOCK_SIZE = 2**40
MAX_HEADER_BYTES = 100_000_000
"""The limit of the safetensors library."""

_ALIGNMENT = 64
# Hashed out of the cache that the kernel has just copied them into.
_READ_BYTES = 256 << 10
_CODES: Mapping[str, tuple[str, str, int]] = {
    "float16": ("F16", "<f2", 2),
    "float32": ("F32", "<f4", 4),
    "float64": ("F64", "<f8", 8),
    "int64": ("I64", "<i8", 8),
}
_ID = re.compile(r"[0-9a-f]{20}")


def canonical_json(value: Any) -> str:
    """The one JSON text of a value: sorted keys, no spaces, ASCII, finite numbers.

    Raises:
        TypeError: a value that JSON has no form for, or a key that is not text (JSON would merge `1` and `"1"`).
        ValueError: NaN or infinity.
    """
    _check_keys(value)
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def _check_keys(value: Any) -> None:
    if isinstance(value, Mapping):
        for key, item in value.items():
            if not isinstance(key, str):
                raise TypeError(f"a JSON key must be text, not {key!r}")
            _check_keys(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _check_keys(item)


def index_id(inputs: Mapping[str, Any]) -> str:
    """Name of the index that these inputs produce: the first 20 hex digits of SHA-256 over their canonical JSON."""
    return hashlib.sha256(canonical_json(inputs).encode()).hexdigest()[:20]


def is_index_id(text: object) -> bool:
    """Whether a value has the form of an index id; anything else never becomes a path."""
    return isinstance(text, str) and _ID.fullmatch(text) is not None


def checksum_bytes(data: bytes) -> str:
    """xxh3-64 of the bytes, as 16 hex digits."""
    return xxhash.xxh3_64_hexdigest(data)


def checksum_file(fd: int, *, cold: bool = False) -> str:
    """xxh3-64 of an open file, as 16 hex digits.

    Args:
        fd: a file descriptor; its position is neither used nor moved.
        cold: first drop the file from the page cache, so that the medium is read and not our own memory.
    """
    if cold and hasattr(os, "posix_fadvise"):
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    state, offset, piece = xxhash.xxh3_64(), 0, memoryview(bytearray(_READ_BYTES))
    while size := os.preadv(fd, [piece], offset):
        state.update(piece[:size])
        offset += size
    return str(state.hexdigest())


@dataclass(frozen=True)
class TensorSlot:
    """Where one tensor lies in a file.

    Attributes:
        name: its name in the header.
        dtype: numpy name of its format.
        shape: its shape; the first dimension is rows.
        start: its first byte, counted from the beginning of the file's data region.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        width = self.shape[1] if len(self.shape) > 1 else 1
        return width * _CODES[self.dtype][2]

    @property
    def stop(self) -> int:
        """The byte after its last."""
        return self.start + self.shape[0] * self.row_bytes

    @property
    def numpy_dtype(self) -> str:
        """Its little-endian numpy dtype, whatever the machine's own order is."""
        return _CODES[self.dtype][1]


@dataclass(frozen=True)
class FileLayout:
    """One safetensors file: the exact bytes of its header and the place of each tensor."""

    header: bytes
    slots: Mapping[str, TensorSlot]

    @classmethod
    def of(
        cls, metadata: Mapping[str, str], tensors: Sequence[tuple[str, str, tuple[int, ...]]]
    ) -> FileLayout:
        """Lay tensors, each (name, dtype, shape), one after the other."""
        slots = _table(tensors)
        return cls(_header(metadata, _body(slots)), slots)

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return len(self.header) + max(slot.stop for slot in self.slots.values())

    def offset(self, slot: TensorSlot) -> int:
        """First byte of a tensor, counted from the beginning of the file."""
        return len(self.header) + slot.start


@dataclass(frozen=True)
class Layout:
    """Every file of an index, from its id and its block list.

    Attributes:
        index: the index id.
        blocks: the blocks in the order of the gradient vector.
        n: number of examples.
        dtype: format of the stored gradients.
        chunk_size: examples in one chunk; the last chunk may hold fewer.

    Raises:
        ValueError: an index of that shape cannot exist.
    """

    index: str
    blocks: tuple[BlockSpec, ...]
    n: int
    dtype: StorageDtype
    chunk_size: int

    def __post_init__(self) -> None:
        if not is_index_id(self.index):
            raise ValueError(f"an index id is 20 hex digits, not {str(self.index)[:40]!r}")
        if self.dtype not in ("float32", "float16"):
            raise ValueError(f"storage dtype is float32 or float16, not {str(self.dtype)[:40]!r}")
        for name, value in (("n", self.n), ("chunk_size", self.chunk_size)):
            if not 1 <= value <= MAX_ROWS:
                raise ValueError(f"{name} must be between 1 and {MAX_ROWS}")
        if not 1 <= len(self.blocks) <= MAX_BLOCKS:
            raise ValueError(f"an index has 1 to {MAX_BLOCKS} blocks, not {len(self.blocks)}")
        names = [block.name for block in self.blocks]
        if len(set(names)) != len(names):
            raise ValueError("two blocks have one name")
        end = 0
        for block in self.blocks:
            _check_block(block)
            if block.offset < end:
                raise ValueError(f"block {block.name!r} begins before the block before it ends")
            end = block.offset + block.size

    @property
    def n_chunks(self) -> int:
        """Number of chunk files."""
        return -(-self.n // self.chunk_size)

    def rows(self, chunk: int) -> range:
        """The global row numbers that a chunk holds."""
        if not 0 <= chunk < self.n_chunks:
            raise IndexError(f"chunk {chunk} of {self.n_chunks}")
        return range(chunk * self.chunk_size, min(self.n, (chunk + 1) * self.chunk_size))

    def chunk_name(self, chunk: int) -> str:
        """File name of a chunk inside the `chunks` folder."""
        return f"{chunk:06d}.safetensors"

    def chunk_file(self, chunk: int) -> str:
        """Name of a chunk in the manifest and the journal, relative to the index folder."""
        return f"{CHUNKS_FOLDER}/{self.chunk_name(chunk)}"

    def chunk(self, chunk: int) -> FileLayout:
        """Layout of a chunk file; its header carries the index id and the chunk number."""
        body, slots = self._full_table if len(self.rows(chunk)) == self.chunk_size else self._last_table
        # Fixed width: the length of the header must not depend on the number.
        metadata = {"chunk": f"{chunk:012d}", "index": self.index, "kind": "gradian-chunk"}
        return FileLayout(_header(metadata, body), slots)

    @cached_property
    def examples(self) -> FileLayout:
        """Layout of `examples.safetensors`."""
        metadata = {"index": self.index, "kind": "gradian-examples"}
        return FileLayout.of(metadata, self._example_tensors("", self.n))

    def chunk_bytes(self, chunk: int) -> int:
        """Size of a chunk file."""
        return self._full_bytes if len(self.rows(chunk)) == self.chunk_size else self._last_bytes

    @property
    def total_bytes(self) -> int:
        """Bytes of all chunk files and `examples.safetensors`."""
        last = self.n_chunks - 1
        return last * self._full_bytes + self.chunk_bytes(last) + self.examples.size

    def _example_tensors(self, prefix: str, rows: int) -> list[tuple[str, str, tuple[int, ...]]]:
        return [
            (f"{prefix}sq_norms", "float64", (rows, len(self.blocks))),
            (f"{prefix}loss", "float64", (rows,)),
            (f"{prefix}supervised_tokens", "int64", (rows,)),
            (f"{prefix}row", "int64", (rows,)),
        ]

    def _chunk_table(self, rows: int) -> tuple[bytes, Mapping[str, TensorSlot]]:
        # The 8-byte tensors come first, so that everything is aligned to its own size.
        tensors = self._example_tensors(EXAMPLES_PREFIX, rows)
        tensors += [(block.name, self.dtype, (rows, block.size)) for block in self.blocks]
        slots = _table(tensors)
        return _body(slots), slots

    @cached_property
    def _full_table(self) -> tuple[bytes, Mapping[str, TensorSlot]]:
        return self._chunk_table(self.chunk_size)

    @cached_property
    def _last_table(self) -> tuple[bytes, Mapping[str, TensorSlot]]:
        return self._chunk_table(self.n - (self.n_chunks - 1) * self.chunk_size)

    @cached_property
    def _full_bytes(self) -> int:
        return self.chunk(0).size if self.n >= self.chunk_size else 0

    @cached_property
    def _last_bytes(self) -> int:
        return self.chunk(self.n_chunks - 1).size


def _check_block(block: BlockSpec) -> None:
    try:
        length = len(block.name.encode())
    except UnicodeEncodeError:
        raise ValueError("a block's name is not valid Unicode") from None
    if not 1 <= length <= MAX_NAME_BYTES:
        raise ValueError(f"a block's name has 1 to {MAX_NAME_BYTES} bytes, not {length}")
    if block.name == "__metadata__" or block.name.startswith(EXAMPLES_PREFIX):
        raise ValueError(f"the name {block.name!r} is reserved")
    if not block.shape or not all(part and all(d >= 1 for d in part) for part in block.shape):
        raise ValueError(f"block {block.name!r} has an empty shape")
    if block.size > MAX_BLOCK_SIZE:
        raise ValueError(f"block {block.name!r} has more than {MAX_BLOCK_SIZE} elements")


def _table(tensors: Sequence[tuple[str, str, tuple[int, ...]]]) -> dict[str, TensorSlot]:
    slots: dict[str, TensorSlot] = {}
    start = 0
    for name, dtype, shape in tensors:
        slots[name] = TensorSlot(name, dtype, shape, start)
        start = slots[name].stop
    return slots


def _body(slots: Mapping[str, TensorSlot]) -> bytes:
    entries = {
        slot.name: {
            "dtype": _CODES[slot.dtype][0],
            "shape": list(slot.shape),
            "data_offsets": [slot.start, slot.stop],
        }
        for slot in slots.values()
    }
    return json.dumps(entries, separators=(",", ":")).encode()[1:]


def _header(metadata: Mapping[str, str], body: bytes) -> bytes:
    text = b'{"__metadata__":' + canonical_json(metadata).encode() + b"," + body
    padded = ceil((8 + len(text)) / _ALIGNMENT) * _ALIGNMENT - 8
    if padded > MAX_HEADER_BYTES:
        raise ValueError(f"a header of {padded} bytes is above the safetensors limit of {MAX_HEADER_BYTES}")
    return padded.to_bytes(8, "little") + text.ljust(padded)
