"""Small Arrow files that stand for a great deal: each takes a few bytes to a mebibyte, and all of memory to convert."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any

from gradian.data.arrowfile import _field, _pointed

MEBIBYTE = 1 << 20
_HUGE = 10**12


def stream(*batches: Any, **options: Any) -> bytes:
    """The bytes of record batches or tables, as `save_to_disk` writes them."""
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    writing = pa.ipc.IpcWriteOptions(allow_64bit=True, **options)
    with pa.ipc.new_stream(sink, batches[0].schema, options=writing) as writer:
        for batch in batches:
            writer.write(batch)
    return bytes(sink.getvalue())


def _of(array: Any) -> bytes:
    import pyarrow as pa

    return stream(pa.record_batch([array], names=["text"]))


def _nulls(length: int) -> Any:
    import pyarrow as pa

    return pa.Array.from_buffers(pa.null(), length, [None], null_count=length)


def _listed(values: Any, ends: tuple[int, ...]) -> Any:
    import pyarrow as pa

    return pa.LargeListArray.from_arrays(pa.array(ends, pa.int64()), values)


def nulls() -> bytes:
    return _of(_nulls(_HUGE))


def nulls_in_a_list() -> bytes:
    return _of(_listed(_nulls(_HUGE), (0, _HUGE)))


def nulls_whose_bytes_wrap_to_none() -> bytes:
    # Eight bytes each are 2**64 of them.
    return _of(_listed(_nulls(2**61), (0, 2**61)))


def mappings_of_nothing() -> bytes:
    import pyarrow as pa

    kind = pa.struct([("a", pa.null())])
    return _of(_listed(pa.Array.from_buffers(kind, _HUGE, [None], children=[_nulls(_HUGE)]), (0, _HUGE)))


def lists_of_nothing() -> bytes:
    import pyarrow as pa

    kind = pa.list_(pa.int8(), 0)
    empty = pa.Array.from_buffers(kind, _HUGE, [None], children=[pa.array([], pa.int8())])
    return _of(_listed(empty, (0, _HUGE)))


def one_run() -> bytes:
    import pyarrow as pa

    return _of(pa.RunEndEncodedArray.from_arrays(pa.array([_HUGE], pa.int64()), pa.array(["hello"])))


def runs_in_a_list() -> bytes:
    import pyarrow as pa

    runs = pa.RunEndEncodedArray.from_arrays(pa.array([_HUGE], pa.int64()), pa.array(["hello"]))
    return _of(pa.StructArray.from_arrays([_listed(runs, (0, _HUGE))], ["a"]))


def compressed() -> bytes:
    import pyarrow as pa

    return stream(pa.record_batch({"text": ["a" * (200 * MEBIBYTE)]}), compression="zstd")


def compressed_dictionary() -> bytes:
    import pyarrow as pa

    texts = pa.array(["a" * (200 * MEBIBYTE)]).dictionary_encode()
    return stream(pa.record_batch([texts], names=["text"]), compression="zstd")


def views_of_one_text() -> bytes:
    import pyarrow as pa

    view = struct.pack("<i4sii", MEBIBYTE, b"xxxx", 0, 0)
    n = 20_000
    buffers = [None, pa.py_buffer(view * n), pa.py_buffer(b"x" * MEBIBYTE)]
    return _of(pa.Array.from_buffers(pa.string_view(), n, buffers))


def views_of_one_list() -> bytes:
    import pyarrow as pa

    n, size = 20_000, 100_000
    values = pa.array([1] * size, pa.int8())
    places = (pa.array([0] * n, pa.int32()), pa.array([size] * n, pa.int32()))
    return _of(pa.ListViewArray.from_arrays(*places, values))


def rows_of_one_text() -> bytes:
    import pyarrow as pa

    codes = pa.array([0] * 20_000, pa.int8())
    return _of(pa.DictionaryArray.from_arrays(codes, pa.array(["x" * MEBIBYTE])))


def batches_of_one_dictionary() -> bytes:
    # A text is no trouble; that it is looked at once a batch is.
    import pyarrow as pa

    texts = pa.array(["é" * (MEBIBYTE // 2)] * 2)
    codes = pa.array([None], pa.int8())
    batch = pa.record_batch([pa.DictionaryArray.from_arrays(codes, texts)], names=["text"])
    return stream(*[batch] * 5_000)


def dictionary_that_grows() -> bytes:
    import pyarrow as pa

    def batch(size: int) -> Any:
        texts = pa.array(["x" * MEBIBYTE, *map(str, range(size))])
        return pa.record_batch(
            [pa.DictionaryArray.from_arrays(pa.array([size], pa.int16()), texts)], ["text"]
        )

    return stream(*map(batch, range(1_000)), emit_dictionary_deltas=True)


def columns_of_one_text() -> bytes:
    import pyarrow as pa

    n = 1_000
    names = [f"c{i}" for i in range(n)]
    texts = [pa.array(["x" * MEBIBYTE if i == 0 else "y"]) for i in range(n)]
    data = bytearray(stream(pa.record_batch(texts, names=names)))
    (schema_bytes,) = struct.unpack_from("<i", data, 4)
    at = 8 + schema_bytes + 8  # Behind the schema and the head of the batch.
    header = memoryview(data)[at:]
    table = _pointed(bytes(header), _needed(bytes(header), struct.unpack_from("<I", header)[0], 2))
    buffers = at + _pointed(bytes(header), _needed(bytes(header), table, 2)) + 4
    first = data[buffers : buffers + 48]  # Validity, offsets and text.
    data[buffers : buffers + 48 * n] = first * n
    return bytes(data)


def names_of_one_text() -> bytes:
    import pyarrow as pa

    data = stream(pa.schema([(f"c{i}", pa.int8()) for i in range(3_000)]).empty_table())
    (size,) = struct.unpack_from("<i", data, 4)
    header = bytearray(data[8 : 8 + size])
    root = struct.unpack_from("<I", header)[0]
    schema = _pointed(bytes(header), _needed(bytes(header), root, 2))
    fields = _pointed(bytes(header), _needed(bytes(header), schema, 1))
    name = len(header)
    whole = bytes(header)
    header += struct.pack("<I", 300_000) + b"x" * 300_000 + bytes(8)
    header += bytes(-len(header) % 8)
    for field in range(3_000):
        place = _needed(whole, _pointed(whole, fields + 4 + 4 * field), 0)
        struct.pack_into("<I", header, place, name - place)
    return b"\xff" * 4 + struct.pack("<i", len(header)) + bytes(header) + data[8 + size :]


def _needed(header: bytes, table: int, slot: int) -> int:
    place = _field(header, table, slot)
    assert place is not None
    return place


_MAKERS: tuple[Callable[[], bytes], ...] = (
    nulls,
    nulls_in_a_list,
    nulls_whose_bytes_wrap_to_none,
    mappings_of_nothing,
    lists_of_nothing,
    one_run,
    runs_in_a_list,
    compressed,
    compressed_dictionary,
    views_of_one_text,
    views_of_one_list,
    rows_of_one_text,
    batches_of_one_dictionary,
    dictionary_that_grows,
    columns_of_one_text,
    names_of_one_text,
)
MAKERS: Mapping[str, Callable[[], bytes]] = {
    maker.__name__.strip("_").replace("_", " "): maker for maker in _MAKERS
}
