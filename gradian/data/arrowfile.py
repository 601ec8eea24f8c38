"""One Arrow file, read only where it holds about as much as it takes on disk.

Arrow lets a small file stand for any amount of data: compressed bodies, runs and nulls of any length, many values at
one place. `datasets` writes little of that, so it is refused by the file's schema and its messages' headers, before
anything is converted or even copied; what is left is weighed.
"""

from __future__ import annotations

import stat
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradian.errors import DataFormatError

MOST_TIMES = 8
"""Rows for each byte on disk, and bytes of values: a row is at least a bit, of a column of truth values."""
SLACK_BYTES = 16 << 20
"""What any file may hold beyond that: a dictionary's texts stand once in the file and in many rows."""

_MAGIC = b"ARROW1"
# Behind its magic, a file of the kind with a footer is a stream.
_STREAM_START = 8
# pyarrow itself reads 64 levels.
_MAX_DEPTH = 64
# The kinds of messages, and the places of their fields: Message.fbs and Schema.fbs of Arrow.
_SCHEMA, _DICTIONARY, _BATCH = 1, 2, 3
_ROOT_KIND, _ROOT_HEADER = 1, 2
_SCHEMA_FIELDS, _SCHEMA_METADATA = 1, 2
_FIELD_NAME, _FIELD_KIND, _FIELD_TYPE, _FIELD_CHILDREN, _FIELD_METADATA = 0, 2, 3, 5, 6
_TIMESTAMP, _UNION, _TYPE_TEXT = 10, 14, 1
# A field is three tables and a name.
_LEAST_FIELD_BYTES = 24
_DICTIONARY_BATCH, _DICTIONARY_IS_DELTA = 1, 2
_BATCH_ROWS, _BATCH_BUFFERS, _BATCH_COMPRESSION = 0, 2, 3

# What a value takes in Python that takes nothing on disk: the place of a null, a mapping or a list of its own.
_PLACE, _OBJECT = 8.0, 64.0

# Bytes that each value of an array takes when it stands alone: a number where all are alike.
_Weights = NDArray[np.float64] | float


class UnboundedArrow(ValueError):
    """The file may hold far more than it takes on disk, or in a way that `datasets` does not write; the text says why."""


def read_table(path: Path) -> Any:
    """Return the table of an Arrow file, memory-mapped.

    Raises:
        DataFormatError: it is not there, no plain file, not Arrow, or stands for more than it takes on disk.
    """
    import pyarrow as pa

    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise DataFormatError(
                "not a plain file",
                where=str(path),
                fix="write the dataset with save_to_disk: a pipe can be read only once",
            )
        mapped = pa.memory_map(str(path))
        start = _STREAM_START if mapped.read(len(_MAGIC)) == _MAGIC else 0
        mapped.seek(start)
        _check_messages(pa.ipc.MessageReader.open_stream(mapped), status.st_size)
        mapped.seek(start)
        for field in pa.ipc.open_stream(mapped).schema:
            _check_type(field.name, field.type)
        mapped.seek(start)
        table = pa.ipc.open_stream(mapped).read_all()
        # Reading believes the lengths and offsets in the file, and a value at a wrong one ends the process. The size
        # is taken between the two: a dictionary that thousands of batches share is checked as often.
        table.validate()
        check_bytes(table.nbytes, status.st_size)
        table.validate(full=True)
        return table
    except FileNotFoundError:
        raise DataFormatError("state.json names this file, but it is not there", where=str(path)) from None
    except UnboundedArrow as error:
        raise refusal(str(error), path) from None
    except (pa.ArrowException, OSError, ValueError, IndexError, MemoryError, struct.error) as error:
        raise DataFormatError(f"not a whole Arrow file ({str(error)[:120]})", where=str(path)) from None


def refusal(problem: str, path: Path) -> DataFormatError:
    """Return the error for what `UnboundedArrow` says of a file or folder."""
    return DataFormatError(
        problem,
        where=str(path),
        expected="plain, uncompressed columns, as save_to_disk of datasets writes them",
        fix="load it with datasets, cast such columns to plain ones, and save it again with save_to_disk;"
        " or write the rows to a .jsonl file",
    )


def check_bytes(n_bytes: float, file_bytes: int) -> None:
    """Refuse values of `n_bytes` in files of `file_bytes`.

    Raises:
        UnboundedArrow: they are too many.
    """
    most = MOST_TIMES * file_bytes + SLACK_BYTES
    if not n_bytes <= most:  # NaN is too many.
        raise UnboundedArrow(
            f"{file_bytes} bytes that stand for {n_bytes:.0f} bytes of values; at most {most} are read"
        )


def row_bytes(table: Any) -> NDArray[np.float64]:
    """Return what each row of a validated table takes when its values are read, at least, in bytes."""
    weights = np.zeros(table.num_rows)
    for column in table.columns:
        row = 0
        for chunk in column.chunks:
            weights[row : row + len(chunk)] += _weights(chunk)
            row += len(chunk)
    return weights


def _check_type(column: str, kind: Any, depth: int = 0) -> None:
    import pyarrow as pa

    # A list of what is known: later versions of Arrow have other kinds.
    types = pa.types
    if depth > _MAX_DEPTH:
        raise UnboundedArrow(f"the column {column!r} nests more than {_MAX_DEPTH} deep")
    if isinstance(kind, pa.BaseExtensionType):
        inner = [kind.storage_type]
    elif types.is_dictionary(kind):
        inner = [kind.value_type]
    elif types.is_map(kind):
        inner = [kind.key_type, kind.item_type]
    elif types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        inner = [kind.value_type]
    elif types.is_struct(kind):
        inner = [kind.field(place).type for place in range(kind.num_fields)]
    elif (
        types.is_null(kind)
        or types.is_primitive(kind)  # Truth values, numbers, dates, times and durations.
        or types.is_decimal(kind)
        or types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_fixed_size_binary(kind)
    ):
        inner = []
    else:
        raise UnboundedArrow(f"the column {column!r} has the type {str(kind)[:80]}, which is not read")
    for part in inner:
        _check_type(column, part, depth + 1)


def _check_messages(messages: Any, file_bytes: int) -> None:
    n_rows = 0
    for message in messages:
        header = bytes(message.metadata)
        (root,) = struct.unpack_from("<I", header)
        kind, place = _field(header, root, _ROOT_KIND), _field(header, root, _ROOT_HEADER)
        if kind is None or place is None:
            raise UnboundedArrow("a message without a kind")
        batch = _pointed(header, place)
        if header[kind] == _SCHEMA:
            _check_schema(header, batch)
            continue
        if header[kind] == _DICTIONARY:
            delta, inner = (
                _field(header, batch, _DICTIONARY_IS_DELTA),
                _field(header, batch, _DICTIONARY_BATCH),
            )
            # Each is copied behind all that came before it.
            if delta is not None and header[delta]:
                raise UnboundedArrow("a dictionary that grows from batch to batch, which is not read")
            if inner is None:
                raise UnboundedArrow("a dictionary without values")
            batch = _pointed(header, inner)
        elif header[kind] == _BATCH:
            rows = _field(header, batch, _BATCH_ROWS)
            n_rows += 0 if rows is None else max(0, struct.unpack_from("<q", header, rows)[0])
        else:
            continue
        if _field(header, batch, _BATCH_COMPRESSION) is not None:
            raise UnboundedArrow("a compressed Arrow file, which is not read")
        if sum(_buffer_lengths(header, batch)) > len(message.body):
            raise UnboundedArrow("columns that share their bytes, which is not read")
    if n_rows > MOST_TIMES * file_bytes:
        raise UnboundedArrow(
            f"{file_bytes} bytes that stand for {n_rows} rows; at most {MOST_TIMES * file_bytes} are read"
        )


def _check_schema(header: bytes, schema: int) -> None:
    # Every name, and every field itself, is copied for each place that points at it.
    n_bytes = _metadata_bytes(header, schema, _SCHEMA_METADATA)
    fields = _tables(header, schema, _SCHEMA_FIELDS)
    while fields:
        field = fields.pop()
        n_bytes += _LEAST_FIELD_BYTES + _length(header, field, _FIELD_NAME)
        n_bytes += _metadata_bytes(header, field, _FIELD_METADATA)
        kind, place = _field(header, field, _FIELD_KIND), _field(header, field, _FIELD_TYPE)
        if kind is not None and place is not None and header[kind] in (_TIMESTAMP, _UNION):
            n_bytes += _length(header, _pointed(header, place), _TYPE_TEXT)
        if n_bytes > len(header):
            raise UnboundedArrow("columns that share their names or types, which is not read")
        fields += _tables(header, field, _FIELD_CHILDREN)


def _metadata_bytes(header: bytes, table: int, slot: int) -> int:
    return sum(_length(header, pair, 0) + _length(header, pair, 1) for pair in _tables(header, table, slot))


def _tables(header: bytes, table: int, slot: int) -> list[int]:
    place = _field(header, table, slot)
    if place is None:
        return []
    start = _pointed(header, place) + 4
    return [_pointed(header, start + 4 * entry) for entry in range(_length(header, table, slot))]


def _length(header: bytes, table: int, slot: int) -> int:
    # Of a text or a vector; nothing where there is none.
    place = _field(header, table, slot)
    return 0 if place is None else int(struct.unpack_from("<I", header, _pointed(header, place))[0])


def _buffer_lengths(header: bytes, batch: int) -> Iterator[int]:
    place = _field(header, batch, _BATCH_BUFFERS)
    if place is None:
        return
    start = _pointed(header, place) + 4
    end = start + 16 * _length(header, batch, _BATCH_BUFFERS)
    for _, length in struct.iter_unpack("<qq", header[start:end]):
        yield max(0, length)


def _field(header: bytes, table: int, slot: int) -> int | None:
    # Where a field of a FlatBuffers table lies; None where it has its default. pyarrow has verified all of them.
    (back,) = struct.unpack_from("<i", header, table)
    (size,) = struct.unpack_from("<H", header, table - back)
    entry = 4 + 2 * slot
    if entry + 2 > size:
        return None
    (offset,) = struct.unpack_from("<H", header, table - back + entry)
    return table + offset if offset else None


def _pointed(header: bytes, place: int) -> int:
    return place + int(struct.unpack_from("<I", header, place)[0])


def _weights(array: Any) -> _Weights:
    import pyarrow as pa

    types, kind = pa.types, array.type
    if len(array) == 0 or types.is_null(kind):
        return _PLACE
    if isinstance(array, pa.ExtensionArray):
        return _weights(array.storage)
    if types.is_dictionary(kind):
        values = _weights(array.dictionary)
        return values if isinstance(values, float) else _each(values, array.indices.fill_null(0))
    if types.is_struct(kind):
        total: _Weights = _OBJECT
        for place in range(kind.num_fields):
            total = total + _weights(array.field(place))
        return total
    if types.is_fixed_size_list(kind):
        n, size, values = len(array), int(kind.list_size), _weights(array.values)
        if isinstance(values, float):
            return _OBJECT + size * values
        sums: NDArray[np.float64] = values[: n * size].reshape(n, size).sum(axis=1)
        return _OBJECT + sums
    if types.is_map(kind):  # Its entries are pairs, which are objects.
        return _sums(array, _OBJECT + _weights(array.keys) + _weights(array.items))
    if types.is_list(kind) or types.is_large_list(kind):
        return _sums(array, _weights(array.values))
    if types.is_fixed_size_binary(kind):
        return max(_PLACE, float(kind.byte_width))
    if types.is_primitive(kind) or types.is_decimal(kind):
        return max(1.0, float(kind.bit_width) / 8)
    # Text or bytes.
    size = 8 if types.is_large_string(kind) or types.is_large_binary(kind) else 4
    return _lengths(_numbers(array.buffers()[1], size, array.offset, len(array) + 1)) + size


def _numbers(buffer: Any, size: int, start: int, count: int) -> NDArray[Any]:
    # pyarrow's own way to numpy imports pandas.
    return np.frombuffer(buffer, f"<i{size}", count, start * size)


def _each(values: NDArray[np.float64], indices: Any) -> NDArray[np.float64]:
    each: NDArray[np.float64] = values[indices.to_numpy(zero_copy_only=False)]
    return each


def _lengths(offsets: NDArray[Any]) -> NDArray[np.float64]:
    # Not in whole numbers: those of a hostile file would wrap.
    return np.diff(offsets).astype(np.float64)


def _sums(lists: Any, values: _Weights) -> NDArray[np.float64]:
    places = lists.offsets
    size = int(places.type.bit_width) // 8
    offsets = _numbers(places.buffers()[1], size, places.offset, len(places))
    if isinstance(values, float):
        return _lengths(offsets) * values + size
    ends = np.concatenate(([0.0], np.cumsum(values)))
    sums: NDArray[np.float64] = ends[offsets[1:]] - ends[offsets[:-1]]
    return sums + size
