from __future__ import annotations

import errno
import gc
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradian import _native
from gradian.ops.chunk_io import (
    NativeChunkIo,
    ReferenceChunkIo,
    RowDtype,
    RowTable,
    RowWriter,
    chunk_io,
    narrowed,
    squared_norms,
)

DTYPES: tuple[RowDtype, ...] = ("float32", "float16", "bfloat16")
NUMPY = {"float32": np.dtype("f4"), "float16": np.dtype("f2"), "bfloat16": np.dtype("u2")}
WRITERS = ("reference", *_native.instruction_sets())
Rows = npt.NDArray[Any]


@pytest.fixture
def fd() -> Iterator[int]:
    with tempfile.TemporaryFile() as file:
        yield file.fileno()


def writer_of(name: str, table: RowTable) -> RowWriter:
    if name == "reference":
        return ReferenceChunkIo().writer(table)
    writer: RowWriter = _native.ChunkWriter(table.rows, table.starts, table.widths, table.dtype, name)
    return writer


def store_all(name: str, values: Rows, dtype: RowDtype, fd: int) -> npt.NDArray[np.float64]:
    """Write [n, d] as the only block of a chunk; the squared norms."""
    os.ftruncate(fd, values.size * NUMPY[dtype].itemsize)
    table = RowTable(len(values), (0,), (values.shape[1],), dtype)
    norms = np.full((len(values), 1), -1.0)
    writer_of(name, table).write(fd, 0, np.arange(len(values)), [values], norms)
    return norms[:, 0]


def raw_rows(seed: int, dtype: RowDtype, n: int, width: int) -> Rows:
    """Any bit patterns: NaN, infinities, subnormals and -0.0 among them."""
    raw = np.random.default_rng(seed).bytes(n * width * NUMPY[dtype].itemsize)
    return np.frombuffer(raw, NUMPY[dtype]).reshape(n, width)


def norm_by_definition(row: Rows, dtype: RowDtype) -> float:
    """One addition at a time, on Python's floats."""
    if dtype == "bfloat16":
        row = (row.astype(np.uint32) << 16).view(np.float32)
    lanes = [0.0] * 16
    for i, x in enumerate(row.astype(np.float64).tolist()):
        lanes[i % 16] += x * x
    for half in (8, 4, 2, 1):
        lanes = [lanes[lane] + lanes[lane + half] for lane in range(half)]
    return lanes[0]


@given(seed=st.integers(0, 2**32 - 1), dtype=st.sampled_from(DTYPES), width=st.integers(1, 70))
def test_a_squared_norm_is_summed_in_the_documented_order(seed: int, dtype: RowDtype, width: int) -> None:
    rng = np.random.default_rng(seed)
    finite = (rng.standard_normal((3, width)) * 10.0 ** rng.integers(-3, 4, (3, width))).astype(np.float32)
    stored = finite if dtype == "float32" else narrowed(finite, dtype)
    assert squared_norms(stored).tolist() == [norm_by_definition(row, dtype) for row in stored]


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_every_16_bit_pattern_comes_back_and_its_norms_are_the_reference_s(
    name: str, dtype: RowDtype, fd: int
) -> None:
    patterns = np.arange(65536, dtype=np.uint16).view(NUMPY[dtype])
    for width in (1, 64, 65536):
        values = patterns.reshape(-1, width)
        norms = store_all(name, values, dtype, fd)
        assert norms.tobytes() == squared_norms(values).tobytes()
        for io in (ReferenceChunkIo(), NativeChunkIo()):
            mapped = io.reader(dtype).map_rows(fd, 0, *values.shape)
            assert mapped.dtype == NUMPY[dtype]
            assert mapped.flags.writeable
            assert mapped.tobytes() == values.tobytes()


def near_16_bits(dtype: RowDtype) -> Rows:
    """Every 16-bit number, the middle to the next, and the float32 on each side of both."""
    numbers = np.arange(65536, dtype=np.uint16)
    exact = (
        numbers.view(np.float16).astype(np.float32)
        if dtype == "float16"
        else (numbers.astype(np.uint32) << 16).view(np.float32)
    )
    with np.errstate(all="ignore"):
        middles = ((exact.astype(np.float64) + np.roll(exact, -1).astype(np.float64)) / 2).astype(np.float32)
        near = np.concatenate([exact, middles])
        near = np.concatenate([near, np.nextafter(near, np.inf), np.nextafter(near, -np.inf)])
    return near.astype(np.float32)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrowing_rounds_ties_to_even_as_torch_does(dtype: RowDtype) -> None:
    values = near_16_bits(dtype)
    ours = narrowed(values, dtype).view(np.uint16)
    theirs = torch.from_numpy(values).to(getattr(torch, dtype)).view(torch.int16).numpy().view(np.uint16)
    finite = ~np.isnan(values)
    np.testing.assert_array_equal(ours[finite], theirs[finite])


@pytest.mark.parametrize("name", WRITERS[1:])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_every_writer_narrows_as_the_reference_nan_payloads_included(
    name: str, dtype: RowDtype, fd: int
) -> None:
    nan = np.array([0x7F800001, 0xFF802000, 0x7FC00000, 0xFFFFFFFF, 0x7FBFFFFF], np.uint32).view(np.float32)
    values = np.concatenate([near_16_bits(dtype), nan, nan])
    width = len(values) // 7
    values = values[: 7 * width].reshape(7, width)
    values[-1, -5:] = nan
    norms = store_all(name, values, dtype, fd)
    want = narrowed(values, dtype)
    assert os.pread(fd, want.nbytes, 0) == want.tobytes()
    assert norms.tobytes() == squared_norms(want).tobytes()


@given(
    seed=st.integers(0, 2**32 - 1),
    dtype=st.sampled_from(DTYPES),
    widths=st.lists(st.sampled_from([1, 2, 15, 16, 17, 31, 33, 257]), min_size=1, max_size=4),
    n=st.integers(1, 9),
    narrow=st.booleans(),
    cuts=st.sets(st.integers(1, 8)),
)
def test_rows_in_any_order_and_batches_give_the_same_bytes_and_norms_everywhere(
    seed: int, dtype: RowDtype, widths: list[int], n: int, narrow: bool, cuts: set[int]
) -> None:
    rng = np.random.default_rng(seed)
    given_as: RowDtype = "float32" if narrow else dtype
    values = [raw_rows(seed + i, given_as, n, width) for i, width in enumerate(widths)]
    # Starts that fit to nothing: the rows lie where the table says.
    sizes = [3 + n * width * NUMPY[dtype].itemsize for width in widths]
    starts = tuple(int(start) + 3 for start in np.cumsum([0, *sizes[:-1]]))
    table = RowTable(n, starts, tuple(widths), dtype)
    batches = np.split(rng.permutation(n), sorted(cut for cut in cuts if cut < n))
    results = set()
    for name in WRITERS:
        with tempfile.TemporaryFile() as file:
            norms = np.full((n, len(widths)), -1.0)
            writer = writer_of(name, table)
            for rows in batches:
                first = int(rng.integers(len(widths)))
                for block, end in ((first, len(widths)), (0, first)):
                    parts = [np.ascontiguousarray(part[rows]) for part in values[block:end]]
                    writer.write(file.fileno(), block, rows, parts, norms)
            file.seek(0)
            data = file.read()
        results.add((data, norms.tobytes()))
        for block, (start, width) in enumerate(zip(starts, widths, strict=True)):
            stored = np.frombuffer(data, NUMPY[dtype], n * width, start).reshape(n, width)
            want = narrowed(values[block], dtype) if narrow and dtype != "float32" else values[block]
            assert stored.tobytes() == want.tobytes()
            assert norms[:, block].tobytes() == squared_norms(stored).tobytes()
    assert len(results) == 1


@pytest.mark.parametrize("name", WRITERS[1:])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_longer_than_one_call_takes_are_written_whole(name: str, dtype: RowDtype, fd: int) -> None:
    finite = np.random.default_rng(0).standard_normal((3, 140_017)).astype(np.float32)
    stored = finite if dtype == "float32" else narrowed(finite, dtype)
    for values in (finite, stored):
        norms = store_all(name, values, dtype, fd)
        assert os.pread(fd, 2 * stored.nbytes, 0) == stored.tobytes()
        assert norms.tobytes() == squared_norms(stored).tobytes()


@pytest.mark.parametrize(
    ("first_block", "rows", "blocks", "norms"),
    [
        (0, [2], [np.zeros((1, 4), "f2")], (2, 2)),
        (0, [-1], [np.zeros((1, 4), "f2")], (2, 2)),
        (2, [0], [np.zeros((1, 4), "f2")], (2, 2)),
        (1, [0], [np.zeros((1, 4), "f2")], (2, 2)),
        (0, [0, 1], [np.zeros((1, 4), "f2")], (2, 2)),
        (0, [0], [np.zeros((1, 4), "f8")], (2, 2)),
        (0, [0], [np.zeros((1, 4), "u2")], (2, 2)),
        (0, [0], [np.zeros((1, 8), "f2")[:, ::2]], (2, 2)),
        (0, [0], [np.zeros(4, "f2")], (2, 2)),
        (0, [0], [[0.0] * 4], (2, 2)),
        (0, [0], [np.zeros((1, 4), "f2")], (2, 1)),
    ],
)
def test_the_extension_refuses_what_would_reach_outside_of_an_array(
    fd: int, first_block: int, rows: list[int], blocks: list[Any], norms: tuple[int, int]
) -> None:
    writer = _native.ChunkWriter(2, (0, 16), (4, 7), "float16")
    with pytest.raises(ValueError, match=r"block|row|sq_norms"):
        writer.write(fd, first_block, np.array(rows), blocks, np.zeros(norms))
    assert os.fstat(fd).st_size == 0


def test_the_extension_refuses_a_chunk_that_no_file_can_hold() -> None:
    for starts, widths in (((0,), (2**61,)), ((2**63 - 1,), (1,))):
        with pytest.raises(OverflowError):
            _native.ChunkWriter(2**3, starts, widths, "float32")
    with pytest.raises(ValueError, match="start"):
        _native.ChunkWriter(1, (0,), (), "float32")
    for make in (lambda: _native.ChunkWriter(1, (), (), "int8"), lambda: _native.ChunkReader("int8", 0)):
        with pytest.raises(ValueError, match="int8"):
            make()


@pytest.mark.parametrize("name", WRITERS)
def test_what_the_system_refuses_is_an_oserror_with_its_number(name: str, tmp_path: Path) -> None:
    table = RowTable(64, (0,), (4096,), "float32")
    rows, values, norms = np.arange(64), np.ones((64, 4096), np.float32), np.zeros((64, 1))
    path = tmp_path / "file"
    path.write_bytes(b"")
    with path.open("rb") as file, pytest.raises(OSError, match=r"."):
        writer_of(name, table).write(file.fileno(), 0, rows, [values], norms)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with path.open("r+b") as file, pytest.raises(OSError, match=r".") as caught:
            writer_of(name, table).write(file.fileno(), 0, rows, [values], norms)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.errno == errno.EFBIG


IMPLEMENTATIONS = ("reference", "native")


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_a_map_outlives_its_reader_and_its_file_and_never_reaches_the_file(impl: str, tmp_path: Path) -> None:
    values = np.arange(6 * 9000, dtype=np.float32).reshape(6, 9000)
    path = tmp_path / "file"
    path.write_bytes(b"head" + values.tobytes())
    with path.open("rb") as file:
        reader = chunk_io(impl).reader("float32")
        rows = reader.map_rows(file.fileno(), 4 + 2 * 36000, 3, 9000)
        again = reader.map_rows(file.fileno(), 4 + 2 * 36000, 3, 9000)
    assert not rows.flags.owndata
    del reader
    path.unlink()
    gc.collect()
    np.testing.assert_array_equal(rows, values[2:5])
    rows[:] = 7
    part = rows[1, 5:]
    del rows
    assert (part == 7).all()
    np.testing.assert_array_equal(again, values[2:5])


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_rows_outside_of_the_file_are_refused(impl: str, fd: int) -> None:
    os.ftruncate(fd, 4096)
    reader = chunk_io(impl).reader("float16")
    assert reader.map_rows(fd, 4090, 1, 3).tolist() == [[0, 0, 0]]
    for offset, rows, width in ((4092, 1, 3), (0, 2049, 1), (8192, 1, 1)):
        with pytest.raises(ValueError, match=r"."):
            reader.map_rows(fd, offset, rows, width)


def threads() -> int:
    return len(os.listdir("/proc/self/task"))


def test_the_second_thread_begins_with_the_first_large_map_and_ends_with_its_reader(fd: int) -> None:
    os.ftruncate(fd, 8 << 20)
    before = threads()
    reader = NativeChunkIo().reader("float32")
    reader.map_rows(fd, 0, 1, 100)
    assert threads() == before
    tiles = [reader.map_rows(fd, i << 20, 1, 1 << 18) for i in range(8)]
    reader.warm(fd, 0, 8 << 20)
    assert threads() == before + 1
    reader.close()
    assert threads() == before
    # It goes on without its thread.
    assert sum(float(tile.sum()) for tile in tiles) == float(reader.map_rows(fd, 0, 8, 1 << 18).sum()) == 0.0
    assert threads() == before
    other = NativeChunkIo().reader("float32")
    kept = other.map_rows(fd, 0, 8, 1 << 18)
    assert threads() == before + 1
    del other
    assert threads() == before
    assert kept[7, -1] == 0.0
    assert not NativeChunkIo().reader("float32", read_ahead=0).reads_ahead


def test_what_is_let_go_is_unmapped(tmp_path: Path) -> None:
    path = tmp_path / "unmapped"
    path.write_bytes(bytes(4 << 20))

    def maps() -> int:
        return Path("/proc/self/maps").read_text().count(str(path))

    with path.open("rb") as file:
        descriptors = len(os.listdir("/proc/self/fd"))
        reader = NativeChunkIo().reader("float32", read_ahead=1 << 20)
        for _ in range(100):
            tile = reader.map_rows(file.fileno(), 0, 4, 1 << 18)
            reader.warm(file.fileno(), 4096, 1 << 20)
            # The new one and the one before, one being warmed, one that the thread may be at.
            assert maps() <= 4
        reader.close()
        assert maps() == 1
        assert len(os.listdir("/proc/self/fd")) == descriptors
        del tile
        assert maps() == 0


# Processes of their own: a bus error or a thread that never ends must fail the test, not end it.
CUT_SHORT = """
import os, tempfile, time
from gradian.ops.chunk_io import NativeChunkIo
reader = NativeChunkIo().reader("float32")
for _ in range(40):
    with tempfile.TemporaryFile() as file:
        os.truncate(file.fileno(), 16 << 20)
        rows = reader.map_rows(file.fileno(), 0, 16, 1 << 18)
        reader.warm(file.fileno(), 0, 16 << 20)
        os.truncate(file.fileno(), 4096)
        time.sleep(0.001)
reader.close()
"""
FORKED = """
import os, tempfile, threading
import numpy as np
from gradian.ops.chunk_io import NativeChunkIo
values = np.arange(1 << 20, dtype=np.float32)
with tempfile.TemporaryFile() as file:
    file.write(values.tobytes())
    file.flush()
    reader = NativeChunkIo().reader("float32", read_ahead=1 << 16)
    for run in range(20):
        rows = [reader.map_rows(file.fileno(), 0, 4, 1 << 18) for _ in range(5)]
        pid = os.fork()
        if pid == 0:
            assert (rows[0].reshape(-1) == values).all()
            del rows
            if run % 2:
                again = reader.map_rows(file.fileno(), 0, 4, 1 << 18)
                assert len(os.listdir("/proc/self/task")) == 2
                assert (again.reshape(-1) == values).all()
            reader.close()
            del reader
            os._exit(0 if len(os.listdir("/proc/self/task")) == 1 else 3)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert status == 0, status
    assert (rows[4].reshape(-1) == values).all()
"""


@pytest.mark.parametrize("scene", [CUT_SHORT, FORKED], ids=["cut short", "forked"])
def test_the_second_thread_survives(scene: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", scene], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
