from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

from gradian.errors import (
    CorruptIndexError,
    DiskSpaceError,
    IncompleteIndexError,
    IndexLockedError,
    StoreError,
)
from gradian.store import durable, writer
from gradian.store.cache import find_index, index_path
from gradian.store.format import StorageDtype, index_id
from gradian.store.reader import IndexReader
from gradian.store.writer import IndexWriter, open_writer
from gradian.types import BlockSpec
from tests.store.building import (
    BLOCKS,
    CHUNK,
    INPUTS,
    N,
    build,
    digests,
    gradients,
    memory_folder,
    write_pending,
)

on_both = pytest.mark.usefixtures("implementation")


@st.composite
def _shapes(draw: st.DrawFn) -> tuple[tuple[BlockSpec, ...], int, int]:
    sizes = draw(st.lists(st.sampled_from([1, 2, 3, 7, 16, 31, 127, 1025]), min_size=1, max_size=4))
    n = draw(st.sampled_from([1, 2, 5, 13, 16, 17]))
    chunk_size = draw(st.sampled_from([1, 2, 5, 16, 17, 1000]))
    offsets = np.cumsum([0, *sizes])
    blocks = tuple(BlockSpec(f"блок.{i}", ((size,),), int(offsets[i])) for i, size in enumerate(sizes))
    return blocks, n, chunk_size


@on_both
@settings(max_examples=60, deadline=None)
@given(
    shape=_shapes(),
    dtype=st.sampled_from(["float32", "float16"]),
    seed=st.integers(0, 2**32 - 1),
    batch=st.sampled_from([1, 3, 64]),
    max_rows=st.sampled_from([None, 1, 3, 1000]),
)
def test_every_bit_pattern_comes_back(
    shape: tuple[tuple[BlockSpec, ...], int, int],
    dtype: StorageDtype,
    seed: int,
    batch: int,
    max_rows: int | None,
) -> None:
    blocks, n, chunk_size = shape
    rng = np.random.default_rng(seed)
    width = np.dtype(dtype).itemsize
    # Raw bits: NaN payloads, infinities, subnormals and -0.0 all occur.
    values = [
        np.frombuffer(rng.bytes(n * block.size * width), dtype=dtype).reshape(n, block.size)
        for block in blocks
    ]
    values[0] = values[0].copy()
    values[0].flat[:4] = np.array([-0.0, np.nan, -np.inf, np.finfo(dtype).smallest_subnormal])[
        : values[0].size
    ]
    with tempfile.TemporaryDirectory(dir=memory_folder()) as cache:
        with open_writer(cache, {"seed": seed}, blocks, n, dtype, chunk_size) as writer:
            write_pending(writer, values, batch)
            reader = writer.finish()
        again = IndexReader.open(reader.path, verify="checksums")
        for block, stored in enumerate(values):
            tiles = list(again.tiles(block, max_rows))
            assert [first for first, _ in tiles] == list(np.cumsum([0, *(len(t) for _, t in tiles)])[:-1])
            assert all(tile.dtype == np.dtype(dtype) and tile.flags.writeable for _, tile in tiles)
            assert np.concatenate([tile for _, tile in tiles]).tobytes() == stored.tobytes()
            with np.errstate(all="ignore"):
                norms = np.square(stored.astype(np.float64)).sum(axis=1)
            np.testing.assert_allclose(again.sq_norms[:, block], norms, rtol=1e-13)
        np.testing.assert_array_equal(again.loss, np.arange(n) * 0.5)
        np.testing.assert_array_equal(again.supervised_tokens, np.arange(n) + 1)


@on_both
def test_any_safetensors_reader_opens_a_chunk(tmp_path: Path) -> None:
    reader = build(tmp_path)
    tensors = load_file(reader.path / "chunks/000002.safetensors")
    for block, values in zip(BLOCKS, gradients(), strict=True):
        np.testing.assert_array_equal(tensors[block.name], values[8:])
    np.testing.assert_array_equal(tensors["@examples/row"], [8, 9, 10])
    examples = load_file(reader.path / "examples.safetensors")
    np.testing.assert_array_equal(examples["row"], np.arange(N))
    np.testing.assert_array_equal(examples["sq_norms"], reader.sq_norms)


@on_both
def test_chunks_committed_in_any_order_end_in_the_same_bytes(cache: Path) -> None:
    build(cache / "a")
    with open_writer(cache / "b", INPUTS, BLOCKS, N, "float32", CHUNK) as writer:
        assert writer.pending == (0, 1, 2)
        for k in (2, 0, 1):
            _write_chunk(writer, k)
        writer.finish({"findings": []})
    assert digests(cache / "a") == digests(cache / "b")


@on_both
@pytest.mark.parametrize("batch", [1, 2, 64])
def test_the_batches_leave_no_trace_in_the_bytes(cache: Path, batch: int) -> None:
    build(cache / "a")
    with open_writer(cache / "b", INPUTS, BLOCKS, N, "float32", CHUNK) as writer:
        write_pending(writer, gradients(), batch)
        writer.finish({"findings": []})
    assert digests(cache / "a") == digests(cache / "b")


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_both_implementations_make_the_same_index_byte_for_byte(
    cache: Path, monkeypatch: pytest.MonkeyPatch, dtype: StorageDtype
) -> None:
    sizes = (1, 33, 5000)
    blocks = tuple(BlockSpec(f"b{i}", ((size,),), 5001 * i) for i, size in enumerate(sizes))
    for impl in ("reference", "native"):
        monkeypatch.setenv("GRADIAN_OPS", impl)
        with open_writer(cache / impl, INPUTS, blocks, N, dtype, CHUNK) as writer:
            # float32 throughout: a float16 store rounds.
            write_pending(writer, gradients(blocks), whole=True)
            writer.finish()
    assert digests(cache / "reference") == digests(cache / "native")


def _write_chunk(writer: IndexWriter, k: int) -> None:
    rows = np.array(writer.chunk_rows(k))
    with writer.chunk(k) as chunk:
        for block, values in enumerate(gradients()):
            chunk.write_block(block, rows, values[rows])
        chunk.write_examples(rows, rows * 0.5, rows + 1)


def _interrupted(cache: Path, chunks: tuple[int, ...] = (0, 1)) -> Path:
    with open_writer(cache, INPUTS, BLOCKS, N, "float32", CHUNK) as writer:
        for k in chunks:
            _write_chunk(writer, k)
        return writer.path


def _pending(cache: Path) -> tuple[int, ...]:
    with open_writer(cache, INPUTS, BLOCKS, N, "float32", CHUNK) as writer:
        return writer.pending


def _torn(path: Path) -> None:
    journal = path / "building.jsonl"
    journal.write_bytes(journal.read_bytes()[:-7])


def _garbage(path: Path) -> None:
    journal = path / "building.jsonl"
    journal.write_bytes(b"\xff\x00[[[\n{}\n17\n" + journal.read_bytes())


def _foreign(path: Path) -> None:
    journal = path / "building.jsonl"
    journal.write_bytes(journal.read_bytes().replace(path.name.encode(), b"0" * 20))


def _lost_chunk(path: Path) -> None:
    (path / "chunks/000000.safetensors").unlink()


def _short_chunk(path: Path) -> None:
    os.truncate(path / "chunks/000000.safetensors", 900)


def _flipped_chunk(path: Path) -> None:
    chunk = path / "chunks/000000.safetensors"
    data = bytearray(chunk.read_bytes())
    data[-1] ^= 1
    chunk.write_bytes(data)


def _swapped(path: Path) -> None:
    first, second = path / "chunks/000000.safetensors", path / "chunks/000001.safetensors"
    data = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(data)


def _unlisted(path: Path) -> None:
    (path / "building.jsonl").unlink()


def _leavings(path: Path) -> None:
    (path / "chunks/000002.safetensors.0badc0de-1-1-00000000.partial").write_bytes(b"x")
    (path / "manifest.json.partial").write_bytes(b"x")
    (path / "chunks/000007.safetensors").write_bytes(b"x")
    (path.parent / "trash.partial").mkdir()


@pytest.mark.parametrize(
    ("damage", "pending"),
    [
        (_torn, (1, 2)),
        (_garbage, (2,)),
        (_foreign, (0, 1, 2)),
        (_lost_chunk, (0, 2)),
        (_short_chunk, (0, 2)),
        (_flipped_chunk, (0, 2)),
        (_swapped, (0, 1, 2)),
        (_unlisted, (0, 1, 2)),
        (_leavings, (2,)),
    ],
)
def test_only_chunks_that_are_whole_and_listed_survive_an_interruption(
    cache: Path, damage: Callable[[Path], None], pending: tuple[int, ...]
) -> None:
    build(cache / "whole")
    damage(_interrupted(cache / "cut"))
    assert _pending(cache / "cut") == pending
    build(cache / "cut")
    assert digests(cache / "cut") == digests(cache / "whole")


def test_what_a_killed_build_may_have_left_unflushed_is_flushed_before_it_is_built_upon(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = _interrupted(cache) / "building.jsonl"
    flushed: set[int] = set()
    fsync = os.fsync

    def noting(fd: int) -> None:
        flushed.add(os.fstat(fd).st_ino)
        fsync(fd)

    monkeypatch.setattr(os, "fsync", noting)
    assert _pending(cache) == (2,)
    folders = (cache.parent, cache, cache / "index", journal.parent)
    assert {path.stat().st_ino for path in (*folders, journal)} <= flushed


def test_what_a_killed_build_removed_does_not_come_back_beside_the_whole_index(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _interrupted(cache)
    with open_writer(cache, INPUTS, BLOCKS, N, "float32", CHUNK) as writer:
        for k in writer.pending:
            _write_chunk(writer, k)
        # Nothing stale is there any more, and no journal of the build: somebody was killed after removing them.
        (path / "building.jsonl").unlink()
        done: list[str | int] = []
        fsync, rename = os.fsync, os.rename

        def flushing(fd: int) -> None:
            done.append(os.fstat(fd).st_ino)
            fsync(fd)

        def renaming(source: str, target: str, **options: Any) -> None:
            done.append(os.path.basename(target))
            rename(source, target, **options)

        monkeypatch.setattr(os, "fsync", flushing)
        monkeypatch.setattr(os, "rename", renaming)
        writer.finish({"findings": []})
    # After the last thing but the manifest was put in its place.
    between = done[done.index("journal.jsonl") : done.index("manifest.json")]
    # The folder of the index is also flushed once for the journal's own name.
    assert between.count(path.stat().st_ino) == 2
    assert (path / "chunks").stat().st_ino in between


def test_a_build_that_stopped_between_its_two_journals_goes_on_from_either(cache: Path) -> None:
    build(cache / "whole")
    path = _interrupted(cache / "cut")
    (path / "building.jsonl").rename(path / "journal.jsonl")
    assert _pending(cache / "cut") == (2,)
    build(cache / "cut")
    assert digests(cache / "cut") == digests(cache / "whole")


def test_who_is_still_building_disturbs_no_reader_of_what_another_finished(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fcntl, "flock", lambda *arguments: None)
    build(cache / "whole")
    slow = cache / "slow"
    path = _interrupted(slow)
    _lost_chunk(path)
    read = durable.create_or_read

    def another_finishes_meanwhile(*arguments: Any) -> bytes:
        data = read(*arguments)
        monkeypatch.setattr(writer, "create_or_read", read)
        build(slow)
        return data

    monkeypatch.setattr(writer, "create_or_read", another_finishes_meanwhile)
    with open_writer(slow, INPUTS, BLOCKS, N, "float32", CHUNK) as late:
        IndexReader.open(path, verify="checksums")
        # It had looked for a finished index before there was one.
        monkeypatch.setattr(late, "_already_whole", lambda: False)
        for k in late.pending:
            _write_chunk(late, k)
            IndexReader.open(path, verify="checksums")
        monkeypatch.undo()
        late.finish({"findings": []})
    assert digests(slow) == digests(cache / "whole")


def test_another_chunk_size_starts_anew_and_leaves_no_old_chunk(cache: Path) -> None:
    _interrupted(cache / "cut")
    build(cache / "cut", chunk_size=6)
    build(cache / "whole", chunk_size=6)
    assert digests(cache / "cut") == digests(cache / "whole")


def test_a_resumed_build_says_what_it_checks_and_counts_what_is_left(cache: Path) -> None:
    _interrupted(cache)
    said: list[str] = []
    with open_writer(cache, INPUTS, BLOCKS, N, "float32", CHUNK, on_message=said.append) as writer:
        assert "2 committed chunks" in said[0]
        before = sum(path.stat().st_size for path in writer.path.rglob("*.safetensors"))
        left = writer.bytes_left
        write_pending(writer, gradients())
        writer.finish()
    assert sum(path.stat().st_size for path in writer.path.rglob("*.safetensors")) - before == left


def test_a_whole_index_is_not_written_again(cache: Path) -> None:
    reader = build(cache)
    with open_writer(cache, INPUTS, BLOCKS, N, "float32", CHUNK) as writer:
        assert writer.finished
        assert writer.pending == ()
        assert writer.bytes_left == 0
        assert writer.finish().manifest == reader.manifest
        with pytest.raises(ValueError, match="already"), writer.chunk(0):
            pass


def test_one_id_for_two_kinds_of_index_is_refused(cache: Path) -> None:
    build(cache)
    with (
        pytest.raises(StoreError, match="other rows or blocks"),
        open_writer(cache, INPUTS, BLOCKS[:1], N, "float32", CHUNK),
    ):
        pass


def test_force_builds_anew_over_a_whole_a_damaged_and_an_unfinished_index(cache: Path) -> None:
    path = build(cache).path
    wanted = digests(cache)
    for damage in (
        lambda: None,
        lambda: (path / "manifest.json").write_bytes(b"{"),
        lambda: (path / "manifest.json").unlink(),
    ):
        damage()
        with open_writer(cache, INPUTS, BLOCKS, N, "float32", CHUNK, force=True) as writer:
            assert writer.pending == (0, 1, 2)
            write_pending(writer, gradients())
            writer.finish({"findings": []})
        assert digests(cache) == wanted


def test_a_damaged_manifest_is_not_built_over_without_being_told_to(cache: Path) -> None:
    path = build(cache).path
    (path / "manifest.json").write_bytes(b"{")
    with (
        pytest.raises(CorruptIndexError, match="--force"),
        open_writer(cache, INPUTS, BLOCKS, N, "float32", CHUNK),
    ):
        pass


def test_an_index_with_pending_chunks_does_not_finish_and_is_not_found(cache: Path) -> None:
    with open_writer(cache, INPUTS, BLOCKS, N, "float32", CHUNK) as writer:
        _write_chunk(writer, 1)
        with pytest.raises(IncompleteIndexError, match="2 chunks"):
            writer.finish()
    assert find_index(cache, index_id(INPUTS)) is None


@on_both
def test_a_chunk_whose_writing_fails_leaves_nothing(cache: Path) -> None:
    def stopped(writer: IndexWriter) -> None:
        with writer.chunk(0) as chunk:
            chunk.write_block(0, np.array([0]), gradients()[0][:1])
            assert len(os.listdir(writer.path / "chunks")) == 1
            raise KeyboardInterrupt

    with open_writer(cache, INPUTS, BLOCKS, N, "float32", CHUNK) as writer:
        with pytest.raises(KeyboardInterrupt):
            stopped(writer)
        assert os.listdir(writer.path / "chunks") == []
        assert writer.pending == (0, 1, 2)


@pytest.mark.parametrize("missing", ["block", "examples"])
def test_a_chunk_with_a_missing_row_is_not_committed(cache: Path, missing: str) -> None:
    rows = np.arange(4)

    def incomplete(writer: IndexWriter) -> None:
        with writer.chunk(0) as chunk:
            for block, values in enumerate(gradients()):
                some = rows[1:] if missing == "block" and block == 2 else rows
                chunk.write_block(block, some, values[some])
            some = rows[1:] if missing == "examples" else rows
            chunk.write_examples(some, some * 1.0, some)

    with open_writer(cache, INPUTS, BLOCKS, N, "float32", CHUNK) as writer:
        with pytest.raises(ValueError, match="1 rows"):
            incomplete(writer)
        assert writer.pending == (0, 1, 2)


@pytest.mark.parametrize(
    ("rows", "dtype", "width"),
    [
        ([4], "float32", 16),
        ([-1], "float32", 16),
        ([0, 0], "float32", 16),
        ([0], "float64", 16),
        ([0], "float32", 7),
    ],
)
def test_rows_that_do_not_belong_are_refused(cache: Path, rows: list[int], dtype: str, width: int) -> None:
    with (
        open_writer(cache, INPUTS, BLOCKS, N, "float32", CHUNK) as writer,
        pytest.raises(ValueError, match=r"rows must lie|twice|takes float32"),
        writer.chunk(0) as chunk,
    ):
        chunk.write_block(0, np.array(rows), np.zeros((len(rows), width), dtype=dtype))


def test_a_batch_has_every_block(cache: Path) -> None:
    def write(blocks: slice) -> None:
        with (
            open_writer(cache, INPUTS, BLOCKS, N, "float32", CHUNK) as writer,
            writer.chunk(0) as chunk,
        ):
            chunk.write_rows(np.arange(4), [values[:4] for values in gradients()[blocks]])

    with pytest.raises(ValueError, match="3 blocks are wanted, not 2"):
        write(slice(2))
    with pytest.raises(ValueError, match="4 rows"):
        write(slice(3))  # what is missing then is the examples' values


def test_a_row_is_written_once(cache: Path) -> None:
    def twice(writer: IndexWriter) -> None:
        with writer.chunk(0) as chunk:
            for _ in range(2):
                chunk.write_examples(np.array([1]), np.zeros(1), np.zeros(1, dtype=np.int64))

    with (
        open_writer(cache, INPUTS, BLOCKS, N, "float32", CHUNK) as writer,
        pytest.raises(ValueError, match="twice"),
    ):
        twice(writer)


def test_the_space_of_a_chunk_is_taken_before_its_first_row(cache: Path) -> None:
    blocks = (BlockSpec("a", ((100_000,),), 0),)
    with (
        open_writer(cache, {"big": 1}, blocks, 4, "float32", 4) as writer,
        contextlib.suppress(KeyboardInterrupt),
        writer.chunk(0),
    ):
        (partial,) = (writer.path / "chunks").iterdir()
        assert partial.name.endswith(".partial")
        assert partial.stat().st_blocks * 512 >= partial.stat().st_size >= 1_600_000
        raise KeyboardInterrupt


def test_a_second_process_waits_a_bounded_time_and_says_so(cache: Path) -> None:
    path = index_path(cache, index_id(INPUTS))
    path.parent.mkdir(parents=True)
    script = (
        "import fcntl, sys, time; lock = open(sys.argv[1], 'w'); fcntl.flock(lock, fcntl.LOCK_EX);"
        "print('held', flush=True); time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, f"{path}.lock"], stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        said: list[str] = []
        try:
            with (
                pytest.raises(IndexLockedError, match="another process"),
                open_writer(
                    cache, INPUTS, BLOCKS, N, "float32", CHUNK, wait_seconds=0.3, on_message=said.append
                ),
            ):
                pass
        finally:
            holder.kill()
        assert len(said) == 1
        assert path.name in said[0]


@pytest.mark.parametrize("damage", [_torn, _garbage, _foreign, _flipped_chunk])
def test_a_damaged_journal_is_mended_before_anything_is_added_to_it(
    cache: Path, damage: Callable[[Path], None]
) -> None:
    path = _interrupted(cache)
    listed = (path / "building.jsonl").read_bytes().splitlines(keepends=True)
    damage(path)
    pending = _pending(cache)
    assert (path / "building.jsonl").read_bytes() == b"".join(
        line for k, line in enumerate(listed) if k not in pending
    )


def test_a_disk_that_gives_back_other_bytes_yields_no_index_and_the_next_build_repairs_it(
    cache: Path,
) -> None:
    build(cache / "whole")
    with open_writer(cache / "bad", INPUTS, BLOCKS, N, "float32", CHUNK) as writer:
        write_pending(writer, gradients())
        _flipped_chunk(writer.path)
        with pytest.raises(CorruptIndexError, match="000000"):
            writer.finish({"findings": []})
    assert find_index(cache / "bad", index_id(INPUTS)) is None
    assert _pending(cache / "bad") == (0,)
    build(cache / "bad")
    assert digests(cache / "bad") == digests(cache / "whole")


def test_a_file_that_the_system_refuses_for_its_size_is_a_lack_of_space(cache: Path) -> None:
    blocks = (BlockSpec("a", ((100_000,),), 0),)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with (
            open_writer(cache, {"big": 1}, blocks, 4, "float32", 4) as writer,
            pytest.raises(DiskSpaceError, match="does not fit"),
            writer.chunk(0),
        ):
            pytest.fail("the chunk was opened")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_more_chunks_than_a_manifest_can_list_are_refused_before_one_is_computed(cache: Path) -> None:
    blocks = (BlockSpec("a", ((2,),), 0),)
    with pytest.raises(StoreError) as caught, open_writer(cache, INPUTS, blocks, 95_000, "float16", 1):
        pytest.fail("it was begun")
    assert caught.value.found == "95000 chunks and 1 blocks"
    assert "chunk_size" in (caught.value.fix or "")
    with open_writer(cache, INPUTS, blocks, 95_000, "float16", 2) as writer:
        assert len(writer.pending) == 47_500
