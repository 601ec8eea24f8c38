"""The manifest: what an index holds and what it was made from. An index is whole when it has one.

The file is one line of canonical JSON that begins with the checksum of the rest, so damage is found before
anything is parsed, and a text that is not exactly what `to_json` writes is refused: no duplicate key, no
number that changes on the way, no room for a second reading.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NoReturn

from gradian.errors import CorruptIndexError, StoreError
from gradian.jsonvalue import parse_strict_json
from gradian.store.format import (
    EXAMPLES_FILE,
    MANIFEST_FILE,
    SCHEMA_VERSION,
    Layout,
    StorageDtype,
    canonical_json,
    checksum_bytes,
    index_id,
)
from gradian.types import BlockSpec

# The parser takes as many values as some 90,000 chunks have.
MAX_MANIFEST_BYTES = 32 << 20
_PREFIX = '{"checksum":"'
_HEAD = len(_PREFIX) + 16
_KEYS = {"schema_version", "id", "inputs", "info", "blocks", "n", "dtype", "chunk_size", "chunks", "examples"}


@dataclass(frozen=True)
class ChunkEntry:
    """One committed file.

    Attributes:
        file: its name relative to the index folder.
        rows: first global row, and the row after the last.
        bytes: its size.
        checksum: xxh3-64 of the whole file, 16 hex digits.
    """

    file: str
    rows: tuple[int, int]
    bytes: int
    checksum: str

    def to_mapping(self) -> dict[str, Any]:
        """The entry as JSON values."""
        return {"file": self.file, "rows": list(self.rows), "bytes": self.bytes, "checksum": self.checksum}


@dataclass(frozen=True)
class Manifest:
    """What an index is.

    Attributes:
        schema_version: version of the format.
        id: name of the index, `index_id(inputs)`.
        inputs: everything that changes a number; hashed.
        info: what else is worth keeping. It must follow from the inputs (findings, coverage) and hold no time
            and no host: two builds of one index are the same bytes.
        blocks: the blocks in the order of the gradient vector.
        n: number of examples.
        dtype: format of the stored gradients.
        chunk_size: examples in a chunk.
        chunks: the chunk files in order.
        examples: the file of per-example values.
    """

    schema_version: int
    id: str
    inputs: Mapping[str, Any]
    info: Mapping[str, Any]
    blocks: tuple[BlockSpec, ...]
    n: int
    dtype: StorageDtype
    chunk_size: int
    chunks: tuple[ChunkEntry, ...]
    examples: ChunkEntry

    @cached_property
    def layout(self) -> Layout:
        """The files that an index of this kind has."""
        return Layout(self.id, self.blocks, self.n, self.dtype, self.chunk_size)

    def to_mapping(self) -> dict[str, Any]:
        """The manifest as JSON values, for printing."""
        blocks = [
            {"name": b.name, "shape": [list(part) for part in b.shape], "offset": b.offset, "size": b.size}
            for b in self.blocks
        ]
        return {
            "schema_version": self.schema_version,
            "id": self.id,
            "inputs": dict(self.inputs),
            "info": dict(self.info),
            "blocks": blocks,
            "n": self.n,
            "dtype": self.dtype,
            "chunk_size": self.chunk_size,
            "chunks": [entry.to_mapping() for entry in self.chunks],
            "examples": self.examples.to_mapping(),
        }

    def to_json(self) -> str:
        """The bytes of `manifest.json`, as ASCII text."""
        rest = f'",{canonical_json(self.to_mapping())[1:]}\n'
        return f"{_PREFIX}{checksum_bytes(rest.encode())}{rest}"

    def journal(self) -> bytes:
        """The bytes of `journal.jsonl` of a whole index."""
        return b"".join(journal_line(entry, self.id) for entry in self.chunks)

    @classmethod
    def from_json(cls, text: str | bytes, where: str = MANIFEST_FILE) -> Manifest:
        """Read a manifest, believing nothing.

        Raises:
            CorruptIndexError: the text is not a manifest that `to_json` could have written.
            StoreError: it is one of another version of the format.
        """
        return _read(text.encode() if isinstance(text, str) else text, where)


def journal_line(entry: ChunkEntry, index: str) -> bytes:
    """The journal line of a chunk; it names the index, so that a stray journal is not believed."""
    return (canonical_json({**entry.to_mapping(), "index": index}) + "\n").encode()


def entry_problem(entry: ChunkEntry, file: str, rows: range, size: int) -> str | None:
    """What is wrong with an entry, given the file it must describe; None when nothing is."""
    if entry.file != file:
        return f"names {entry.file[:80]!r} where {file!r} must stand"
    if entry.rows != (rows.start, rows.stop):
        return f"{file} holds rows {rows.start} to {rows.stop}, and another range is given"
    if entry.bytes != size:
        return f"{file} must have {size} bytes, and another size is given"
    if len(entry.checksum) != 16 or not set(entry.checksum) <= set("0123456789abcdef"):
        return f"the checksum of {file} is not 16 hex digits"
    return None


def parse_entry(value: Any) -> ChunkEntry:
    """A `ChunkEntry` from JSON values.

    Raises:
        ValueError: it has other keys or types.
    """
    if not isinstance(value, dict) or value.keys() != {"file", "rows", "bytes", "checksum"}:
        raise ValueError("a file entry has other keys than file, rows, bytes and checksum")
    rows = _list(value["rows"], "rows")
    if len(rows) != 2:
        raise ValueError("rows must be two numbers")
    return ChunkEntry(
        file=_text(value["file"], "file"),
        rows=(_integer(rows[0], "rows"), _integer(rows[1], "rows")),
        bytes=_integer(value["bytes"], "bytes"),
        checksum=_text(value["checksum"], "checksum"),
    )


def _read(data: bytes, where: str) -> Manifest:
    def corrupt(problem: str) -> NoReturn:
        raise CorruptIndexError(
            f"the manifest is damaged: {problem}", where=where, fix="build the index again with --force"
        )

    if len(data) > MAX_MANIFEST_BYTES:
        corrupt(f"it is longer than {MAX_MANIFEST_BYTES} bytes")
    if (
        not data.startswith(_PREFIX.encode())
        or checksum_bytes(data[_HEAD:]).encode() != data[_HEAD - 16 : _HEAD]
    ):
        corrupt("its checksum does not match")
    try:
        values = parse_strict_json(data, "ascii")
        del values["checksum"]
        version = _integer(values.get("schema_version"), "schema_version")
        if version != SCHEMA_VERSION:
            raise StoreError(
                "the index has another format",
                where=where,
                found=f"version {version}",
                expected=f"version {SCHEMA_VERSION}",
                fix="build the index again with --force",
            )
        manifest = _manifest(values)
        _check(manifest)
        same = manifest.to_json().encode() == data
    except (ValueError, TypeError, RecursionError) as error:
        corrupt(str(error)[:300])
    if not same:
        corrupt("it is not in canonical form")
    return manifest


def _manifest(values: Any) -> Manifest:
    if not isinstance(values, dict) or values.keys() != _KEYS:
        raise ValueError("its keys are not those of a manifest")
    dtype = values["dtype"]
    if dtype != "float32" and dtype != "float16":
        raise ValueError("dtype must be float32 or float16")
    return Manifest(
        schema_version=values["schema_version"],
        id=_text(values["id"], "id"),
        inputs=_object(values["inputs"], "inputs"),
        info=_object(values["info"], "info"),
        blocks=tuple(_block(value) for value in _list(values["blocks"], "blocks")),
        n=_integer(values["n"], "n"),
        dtype=dtype,
        chunk_size=_integer(values["chunk_size"], "chunk_size"),
        chunks=tuple(parse_entry(value) for value in _list(values["chunks"], "chunks")),
        examples=parse_entry(values["examples"]),
    )


def _check(manifest: Manifest) -> None:
    if manifest.id != index_id(manifest.inputs):
        raise ValueError("its id is not the hash of its inputs")
    layout = manifest.layout
    if len(manifest.chunks) != layout.n_chunks:
        raise ValueError(f"it lists {len(manifest.chunks)} chunks where {layout.n_chunks} must be")
    for k, entry in enumerate(manifest.chunks):
        problem = entry_problem(entry, layout.chunk_file(k), layout.rows(k), layout.chunk_bytes(k))
        if problem:
            raise ValueError(problem)
    problem = entry_problem(manifest.examples, EXAMPLES_FILE, range(manifest.n), layout.examples.size)
    if problem:
        raise ValueError(problem)


def _block(value: Any) -> BlockSpec:
    if not isinstance(value, dict) or value.keys() != {"name", "shape", "offset", "size"}:
        raise ValueError("a block has other keys than name, shape, offset and size")
    shape = tuple(
        tuple(_integer(dim, "shape") for dim in _list(part, "shape"))
        for part in _list(value["shape"], "shape")
    )
    if any(len(part) > 8 for part in shape) or len(shape) > 8:
        raise ValueError("a block's shape has too many dimensions")
    block = BlockSpec(_text(value["name"], "name"), shape, _integer(value["offset"], "offset"))
    if block.size != _integer(value["size"], "size"):
        raise ValueError("a block's size is not the product of its shape")
    return block


def _integer(value: Any, name: str) -> int:
    if type(value) is not int or not 0 <= value < 2**62:
        raise ValueError(f"{name} must be a whole number")
    return value


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{name} must be text")
    return value


def _list(value: Any, name: str) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{name} must be a list")
    return value


def _object(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{name} must be an object")
    return value
