from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from gradian.errors import CorruptIndexError, IncompleteIndexError, StoreError
from gradian.store.cache import find_index
from gradian.store.format import Layout, index_id
from gradian.store.reader import IndexReader
from gradian.store.writer import open_writer
from gradian.types import BlockSpec
from tests.store.building import build, digests, gradients, write_pending

on_both = pytest.mark.usefixtures("implementation")

TINY = (BlockSpec("a", ((2,),), 0),)


def _tiny(cache: Path, seed: int = 0, fill: float = 1.0) -> Path:
    with open_writer(cache, {"seed": seed}, TINY, 3, "float16", 2) as writer:
        write_pending(writer, [np.full((3, 2), fill, dtype=np.float16)])
        return writer.finish().path


def _detected(path: Path) -> bool:
    try:
        IndexReader.open(path, verify="checksums")
    except CorruptIndexError:
        return True
    return False


def _files(path: Path) -> list[Path]:
    return sorted(file for file in path.rglob("*") if file.is_file())


def test_every_flipped_byte_is_detected(cache: Path) -> None:
    path = _tiny(cache)
    IndexReader.open(path, verify="checksums")
    names = {
        "000000.safetensors",
        "000001.safetensors",
        "examples.safetensors",
        "journal.jsonl",
        "manifest.json",
    }
    assert {file.name for file in _files(path)} == names
    for file in _files(path):
        good = file.read_bytes()
        for i in range(len(good)):
            bad = bytearray(good)
            bad[i] ^= 1 << (i % 8)
            file.write_bytes(bad)
            assert _detected(path), f"{file.name} byte {i}"
        file.write_bytes(good)
    IndexReader.open(path, verify="checksums")


def test_every_truncation_and_every_extension_is_detected(cache: Path) -> None:
    path = _tiny(cache)
    for file in _files(path):
        good = file.read_bytes()
        for length in range(len(good)):
            file.write_bytes(good[:length])
            assert _detected(path), f"{file.name} cut to {length}"
        for tail in (b"\0", b"\n", b" ", b"{}\n", good[:-1]):
            file.write_bytes(good + tail)
            assert _detected(path), f"{file.name} and {tail[:8]!r}"
        file.write_bytes(good)


def test_every_missing_file_is_detected(cache: Path) -> None:
    path = _tiny(cache)
    for file in _files(path):
        good = file.read_bytes()
        file.unlink()
        if file.name == "manifest.json":
            with pytest.raises(IncompleteIndexError):
                IndexReader.open(path)
        else:
            assert _detected(path), file.name
        file.write_bytes(good)


def test_a_changed_manifest_is_detected_after_opening_too(cache: Path) -> None:
    path = _tiny(cache)
    reader = IndexReader.open(path)
    file = path / "manifest.json"
    file.write_bytes(file.read_bytes().replace(b"float16", b"float32"))
    with pytest.raises(CorruptIndexError, match=r"manifest\.json"):
        reader.verify()


def test_swapped_chunks_are_detected_at_open(cache: Path) -> None:
    reader = build(cache, n=8)
    first, second = (reader.path / entry.file for entry in reader.manifest.chunks)
    assert first.stat().st_size == second.stat().st_size
    first.rename(cache / "kept")
    second.rename(first)
    (cache / "kept").rename(second)
    with pytest.raises(CorruptIndexError, match="000000"):
        IndexReader.open(reader.path)


def test_a_chunk_of_another_index_is_detected_at_open(cache: Path) -> None:
    path, other = _tiny(cache, seed=0), _tiny(cache, seed=1)
    shutil.copy(other / "chunks/000001.safetensors", path / "chunks/000001.safetensors")
    with pytest.raises(CorruptIndexError, match="000001"):
        IndexReader.open(path)


def test_a_stale_chunk_of_the_same_index_is_detected_by_its_checksum(cache: Path) -> None:
    path = _tiny(cache / "new")
    old = _tiny(cache / "old", fill=2.0)
    shutil.copy(old / "chunks/000001.safetensors", path / "chunks/000001.safetensors")
    IndexReader.open(path)
    with pytest.raises(CorruptIndexError, match="000001"):
        IndexReader.open(path, verify="checksums")


def test_the_index_of_other_inputs_under_a_name_is_not_found_as_it(cache: Path) -> None:
    path = _tiny(cache, seed=0)
    path.rename(path.with_name(index_id({"seed": 1})))
    with pytest.raises(CorruptIndexError, match="another index"):
        find_index(cache, index_id({"seed": 1}))


def _link_file(path: Path) -> None:
    chunk = path / "chunks/000000.safetensors"
    chunk.rename(path.parent / "outside")
    chunk.symlink_to(path.parent / "outside")


def _link_folder(path: Path) -> None:
    (path / "chunks").rename(path.parent / "outside")
    (path / "chunks").symlink_to(path.parent / "outside")


def _link_manifest(path: Path) -> None:
    (path / "manifest.json").rename(path.parent / "outside")
    (path / "manifest.json").symlink_to("../outside")


def _pipe(path: Path) -> None:
    (path / "chunks/000000.safetensors").unlink()
    os.mkfifo(path / "chunks/000000.safetensors")


def _manifest_pipe(path: Path) -> None:
    (path / "manifest.json").unlink()
    os.mkfifo(path / "manifest.json")


def _folder(path: Path) -> None:
    (path / "examples.safetensors").unlink()
    (path / "examples.safetensors").mkdir()


def _no_folder(path: Path) -> None:
    shutil.rmtree(path / "chunks")
    (path / "chunks").write_bytes(b"")


@pytest.mark.parametrize(
    "damage", [_link_file, _link_folder, _link_manifest, _pipe, _manifest_pipe, _folder, _no_folder]
)
def test_only_regular_files_of_the_folder_itself_are_read(
    cache: Path, damage: Callable[[Path], None]
) -> None:
    path = _tiny(cache)
    damage(path)
    with pytest.raises(CorruptIndexError):
        IndexReader.open(path)


def test_a_folder_that_is_no_index_says_so(cache: Path) -> None:
    with pytest.raises(StoreError, match="no index here"):
        IndexReader.open(cache / "none")
    with pytest.raises(IncompleteIndexError):
        IndexReader.open(cache)
    assert find_index(cache, index_id({})) is None


@on_both
def test_tiles_are_views_of_the_file_and_writing_to_them_changes_nothing(cache: Path) -> None:
    reader = build(cache)
    before = digests(cache)
    for _, tile in reader.tiles(0):
        assert not tile.flags.owndata
        tile[:] = 7
    assert digests(cache) == before
    np.testing.assert_array_equal(np.concatenate([tile for _, tile in reader.tiles(0)]), gradients()[0])


def test_tiles_refuse_what_is_not_there(cache: Path) -> None:
    reader = build(cache)
    with pytest.raises(IndexError):
        next(reader.tiles(3))
    with pytest.raises(ValueError, match="max_rows"):
        next(reader.tiles(0, 0))


@on_both
def test_chunks_hold_the_rows_of_all_blocks_in_turn(cache: Path) -> None:
    reader = build(cache)
    parts = [(rows, [part.copy() for part in blocks]) for rows, blocks in reader.chunks()]
    assert [rows for rows, _ in parts] == [range(0, 4), range(4, 8), range(8, 11)]
    for number, stored in enumerate(gradients()):
        np.testing.assert_array_equal(np.concatenate([blocks[number] for _, blocks in parts]), stored)
    os.truncate(reader.path / "chunks/000001.safetensors", 100)
    chunks = reader.chunks()
    assert len(list(next(chunks)[1])) == len(reader.blocks)
    with pytest.raises(CorruptIndexError, match="000001"):
        next(next(chunks)[1])


@on_both
def test_a_chunk_that_shrinks_after_opening_is_an_error_and_not_a_bus_error(cache: Path) -> None:
    reader = build(cache)
    os.truncate(reader.path / "chunks/000001.safetensors", 100)
    tiles = reader.tiles(0)
    next(tiles)
    with pytest.raises(CorruptIndexError, match="000001"):
        next(tiles)


@on_both
def test_a_reader_keeps_its_maps_when_the_index_is_rebuilt_and_never_mixes_two(cache: Path) -> None:
    reader = build(cache)
    tiles = reader.tiles(0)
    _, kept = next(tiles)
    build(cache, force=True)
    np.testing.assert_array_equal(kept, gradients()[0][:4])
    with pytest.raises(StoreError, match="removed or replaced") as caught:
        next(tiles)
    assert not isinstance(caught.value, CorruptIndexError)


def _wide(cache: Path) -> IndexReader:
    """Three blocks whose tiles are large enough to be read ahead: 24 of 128 KiB in each."""
    blocks = tuple(BlockSpec(f"b{i}", ((1 << 15,),), i << 15) for i in range(3))
    with open_writer(cache, {"wide": 0}, blocks, 24, "float32", 8) as writer:
        write_pending(writer, gradients(blocks, 24), 8, whole=True)
        return writer.finish()


def _maps(path: Path) -> int:
    return Path("/proc/self/maps").read_text().count(str(path))


def test_tiles_are_mapped_ahead_as_far_as_asked_and_do_not_pile_up(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADIAN_OPS", "native")
    path = _wide(cache).path
    gc.collect()
    before = len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))
    for read_ahead, most in ((0, 1), (1, 2), (512 << 10, 5)):
        reader = IndexReader.open(path, read_ahead=read_ahead)
        for block in (0, 0, 1, 2):
            for first, tile in reader.tiles(block, 1):
                # The thread may be at one that was let go; and the next block is being warmed.
                assert _maps(path / "chunks") <= most + 2, (read_ahead, first)
                assert tile.shape == (1, 1 << 15)
        tiles = reader.tiles(0)
        next(tiles)
        del tile, tiles, reader
        gc.collect()
        assert _maps(path) == 0
        assert (len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))) == before


@on_both
def test_what_is_wrong_with_a_later_chunk_waits_for_its_turn(cache: Path) -> None:
    reader = _wide(cache)
    tiles = reader.tiles(1, 4)
    next(tiles)
    # Replaced by the same bytes, as a second writer on a file system without locks may do.
    chunk = reader.path / "chunks/000001.safetensors"
    shutil.copy(chunk, cache / "same")
    (cache / "same").rename(chunk)
    (reader.path / "chunks/000002.safetensors").unlink()
    want = gradients(reader.blocks, 24)[1]
    for first in (4, 8, 12):
        row, tile = next(tiles)
        assert row == first
        np.testing.assert_array_equal(tile, want[first : first + 4])
    with pytest.raises(CorruptIndexError, match="000002"):
        next(tiles)


@on_both
def test_reading_leaves_no_descriptor_open(cache: Path) -> None:
    path = build(cache).path
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        reader = IndexReader.open(path, verify="checksums")
        assert sum(len(tile) for _, tile in reader.tiles(1, 2)) == 11
        next(reader.tiles(1))
    del reader
    for _ in range(5):
        (path / "chunks/000002.safetensors").rename(path / "gone")
        with pytest.raises(CorruptIndexError):
            IndexReader.open(path)
        (path / "gone").rename(path / "chunks/000002.safetensors")
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.fixture
def open_cache(cache: Path) -> Iterator[Path]:
    """A cache that another user may read, inside a folder that others may enter."""
    cache.chmod(0o755)
    yield cache
    for folder in (cache, *cache.rglob("*/")):
        folder.chmod(0o755)


_AS_ANOTHER = """
import os, sys
from gradian.errors import StoreError
from gradian.store.cache import find_index
from gradian.store.format import index_id
from gradian.store.writer import open_writer
from tests.store.building import BLOCKS, INPUTS, gradients
if os.getuid() == 0:
    os.setgid(65534); os.setuid(65534)
cache = sys.argv[1]
find_index(cache, index_id(INPUTS)).verify()
with open_writer(cache, INPUTS, BLOCKS, 11, "float32", 4) as writer:
    assert writer.finished and writer.pending == () and writer.finish().n == 11
for inputs, force in (({"other": 1}, False), (INPUTS, True)):
    try:
        with open_writer(cache, inputs, BLOCKS, 11, "float32", 4, force=force):
            sys.exit("it was written")
    except StoreError as error:
        assert "cannot be written" in str(error), error
"""


def test_a_read_only_cache_serves_whole_indexes_and_refuses_to_build(open_cache: Path) -> None:
    build(open_cache)
    before = digests(open_cache)
    for folder in (open_cache, *open_cache.rglob("*/")):
        folder.chmod(0o555)
    for path in (path for path in open_cache.rglob("*") if path.is_file()):
        path.chmod(0o444)
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", _AS_ANOTHER, str(open_cache)],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert digests(open_cache) == before


@on_both
def test_memory_for_a_tile_is_that_tile_and_not_the_file(cache: Path) -> None:
    blocks = (BlockSpec("a", ((1000,),), 0), BlockSpec("b", ((1,),), 1000))
    with open_writer(cache, {"wide": 1}, blocks, 64, "float32", 64) as writer:
        write_pending(writer, gradients(blocks, 64))
        reader = writer.finish()
    layout = Layout(reader.id, blocks, 64, "float32", 64)
    size = layout.chunk_bytes(0)
    _, tile = next(reader.tiles(0, max_rows=2))
    maps = [
        line.split()[0]
        for line in Path("/proc/self/maps").read_text().splitlines()
        if "000000.safetensors" in line
    ]
    spans = [int(end, 16) - int(start, 16) for start, end in (item.split("-") for item in maps)]
    assert spans
    assert max(spans) <= 4 * 4096 < size
    assert tile.shape == (2, 1000)


@on_both
def test_a_chunk_that_is_cut_short_between_two_tiles_is_an_error_and_not_a_bus_error(cache: Path) -> None:
    blocks = (BlockSpec("a", ((1024,),), 0),)
    with open_writer(cache, {}, blocks, 64, "float16", 64) as writer:
        write_pending(writer, [np.ones((64, 1024), dtype=np.float16)])
        path = writer.finish().path
    tiles = IndexReader.open(path, read_ahead=0).tiles(0, 8)
    first, _ = next(tiles)
    assert first == 0
    os.truncate(path / "chunks" / "000000.safetensors", 20_000)
    with pytest.raises(CorruptIndexError, match="000000"):
        list(tiles)


def test_values_that_are_cut_short_while_they_are_read_are_an_error(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = IndexReader.open(_tiny(cache))
    read, where = os.pread, reader.path / "examples.safetensors"

    def cut(fd: int, size: int, offset: int) -> bytes:
        data = read(fd, size, offset)
        os.truncate(where, 100)
        return data

    monkeypatch.setattr(os, "pread", cut)
    with pytest.raises(CorruptIndexError, match="examples"):
        _ = reader.loss


def test_opening_a_small_index_takes_little_memory(cache: Path) -> None:
    path = _tiny(cache)
    IndexReader.open(path)
    tracemalloc.start()
    IndexReader.open(path, verify="checksums")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2 << 20
