from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from safetensors import safe_open

from gradian.errors import DiskSpaceError, StoreError
from gradian.store.disk import RESERVE_BYTES
from gradian.store.gram_cache import (
    CHECKSUM_FILE,
    DERIVED_FOLDER,
    GRAM_FILE,
    find_gram,
    gram_layout,
    write_gram,
)
from gradian.store.reader import IndexReader
from gradian.store.writer import open_writer
from tests.store.building import BLOCKS, CHUNK, N, build, digests, gradients, write_pending

ROOT = Path(__file__).resolve().parents[2]
Compute = Callable[[int], npt.NDArray[np.float32]]


def computing(n: int = N) -> Compute:
    rows = gradients(n=n)
    return lambda block: rows[block] @ rows[block].T


def write(reader: IndexReader) -> None:
    write_gram(reader, computing(reader.n), pytest.fail)


def expect_good(reader: IndexReader) -> None:
    found = find_gram(reader, pytest.fail)
    assert found is not None
    for block in range(len(BLOCKS)):
        assert np.array_equal(found.block(block), computing(reader.n)(block))


def test_what_is_written_is_found_in_a_file_that_any_tool_opens(cache: Path) -> None:
    reader = build(cache)
    assert find_gram(reader, pytest.fail) is None
    write(reader)
    expect_good(reader)
    with safe_open(reader.path / DERIVED_FOLDER / GRAM_FILE, "np") as file:
        assert file.metadata()["index"] == reader.id
        for block, spec in enumerate(BLOCKS):
            assert np.array_equal(file.get_tensor(spec.name), computing()(block))


def test_writing_changes_no_byte_of_the_index_and_twice_gives_the_same_bytes(
    tmp_path: Path, cache: Path
) -> None:
    first, second = build(cache / "a"), build(cache / "b")
    before = digests(cache / "a")
    write(first)
    write(second)
    after = digests(cache / "a")
    assert after == digests(cache / "b")
    assert {name for name in after if name not in before} == {
        f"index/{first.id}/{DERIVED_FOLDER}/{name}" for name in (GRAM_FILE, CHECKSUM_FILE)
    }
    assert {name: after[name] for name in before} == before
    IndexReader.open(first.path, verify="checksums")


def test_the_file_may_be_written_to_in_memory_only(cache: Path) -> None:
    reader = build(cache)
    found = write_gram(reader, computing(), pytest.fail)
    found.block(0)[:] = 0
    expect_good(reader)


def test_no_descriptor_is_left_open(cache: Path) -> None:
    reader = build(cache)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        kept = write_gram(reader, computing(), pytest.fail).block(0)
        (reader.path / DERIVED_FOLDER / CHECKSUM_FILE).unlink()
        assert find_gram(reader, lambda message: None) is None
    del kept
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


def _flip(path: Path, index: int) -> None:
    data = bytearray(path.read_bytes())
    data[index] ^= 1
    path.write_bytes(data)


def _as_link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to(path.with_name("elsewhere"))


def _from_another_index(folder: Path) -> None:
    with open_writer(folder.parents[2] / "other", {"other": 1}, BLOCKS, N, "float32", CHUNK) as writer:
        write_pending(writer, gradients())
        reader = writer.finish()
    _take_over(reader, folder)


def _from_another_build(folder: Path) -> None:
    # The same id, but other chunks: what another build wrote is not vouched for by this one's manifest.
    _take_over(build(folder.parents[2] / "other", chunk_size=3), folder)


def _take_over(reader: IndexReader, folder: Path) -> None:
    write(reader)
    for name in (GRAM_FILE, CHECKSUM_FILE):
        (folder / name).write_bytes((reader.path / DERIVED_FOLDER / name).read_bytes())


DAMAGE: dict[str, Callable[[Path], object]] = {
    "a byte of the data": lambda folder: _flip(folder / GRAM_FILE, -1),
    "a byte of the header": lambda folder: _flip(folder / GRAM_FILE, 20),
    "a byte of the checksum": lambda folder: _flip(folder / CHECKSUM_FILE, 3),
    "cut short": lambda folder: os.truncate(folder / GRAM_FILE, 700),
    "empty": lambda folder: (folder / GRAM_FILE).write_bytes(b""),
    "no checksum": lambda folder: (folder / CHECKSUM_FILE).unlink(),
    "a checksum with more behind it": lambda folder: (folder / CHECKSUM_FILE).write_bytes(
        (folder / CHECKSUM_FILE).read_bytes() + b"x"
    ),
    "a link": lambda folder: _as_link(folder / GRAM_FILE),
    "a linked checksum": lambda folder: _as_link(folder / CHECKSUM_FILE),
    "a linked folder": _as_link,
    "another index": _from_another_index,
    "another build": _from_another_build,
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_file_that_is_damaged_or_foreign_is_named_not_used_and_written_again(
    cache: Path, damage: str
) -> None:
    reader = build(cache)
    write(reader)
    folder = reader.path / DERIVED_FOLDER
    DAMAGE[damage](folder)
    said: list[str] = []
    assert find_gram(reader, said.append) is None
    assert [str(folder) in message and "not used" in message for message in said] == [True]
    if damage == "a linked folder":
        folder.unlink()
    write(reader)
    expect_good(reader)


def test_every_flipped_byte_is_noticed(cache: Path) -> None:
    reader = build(cache, n=2)
    write(reader)
    for name in (GRAM_FILE, CHECKSUM_FILE):
        path = reader.path / DERIVED_FOLDER / name
        good = path.read_bytes()
        for index in range(len(good)):
            _flip(path, index)
            assert find_gram(reader, lambda message: None) is None, f"{name} byte {index}"
            path.write_bytes(good)
    expect_good(reader)


def test_a_build_anew_drops_the_file(cache: Path) -> None:
    write(build(cache))
    reader = build(cache, force=True)
    assert find_gram(reader, pytest.fail) is None
    assert not (reader.path / DERIVED_FOLDER).exists()


def test_a_file_beside_an_index_that_was_replaced_meanwhile_is_not_taken_for_the_new_ones(
    cache: Path,
) -> None:
    old = build(cache)
    build(cache, force=True, chunk_size=3)
    write_gram(old, computing(), pytest.fail)
    assert find_gram(IndexReader.open(old.path), lambda message: None) is None


def test_beside_an_index_that_is_gone_nothing_is_made(cache: Path) -> None:
    reader = build(cache)
    reader.path.rename(cache / "gone")
    with pytest.raises(StoreError):
        write(reader)
    assert not reader.path.exists()


def test_without_space_nothing_is_computed(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = build(cache)
    need = gram_layout(reader).size

    class Usage:
        free = need - 1 + RESERVE_BYTES

    monkeypatch.setattr("shutil.disk_usage", lambda path: Usage)
    with pytest.raises(DiskSpaceError, match=r"Gram(.|\n)*engine.gram: never"):
        write_gram(reader, pytest.fail, pytest.fail)
    Usage.free += 1
    write(reader)


_WRITER = """
import fcntl, sys
from gradian.store.gram_cache import write_gram
from gradian.store.reader import IndexReader
from tests.store.building import gradients
readers, rows, computed = [IndexReader.open(path) for path in sys.argv[1:]], gradients(), []
def compute(block):
    computed.append(block)
    return rows[block] @ rows[block].T
for reader in readers:
    print("ready", flush=True)
    sys.stdin.readline()
    found = write_gram(reader, compute, lambda message: None)
    assert (found.block(2) == rows[2] @ rows[2].T).all()
    print(len(computed), flush=True)
    fcntl.flock = lambda *arguments: None  # the second index lies where locks do nothing
"""


def test_two_processes_that_write_at_once_end_with_one_good_file(cache: Path) -> None:
    readers = [build(cache / "locks"), build(cache / "no locks")]
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", _WRITER, *(str(reader.path) for reader in readers)]
    writers = [subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) for _ in range(2)]
    for number, reader in enumerate(readers):
        assert [_line(writer) for writer in writers] == ["ready", "ready"]
        for writer in writers:
            assert writer.stdin is not None
            writer.stdin.write("\n")
            writer.stdin.flush()
        computed = [int(_line(writer)) for writer in writers]
        # With locks the second process takes what the first one made.
        assert sum(computed) == len(BLOCKS) or number == 1
        expect_good(reader)
        assert sorted(os.listdir(reader.path / DERIVED_FOLDER)) == [CHECKSUM_FILE, GRAM_FILE]
    for writer in writers:
        writer.communicate()
        assert writer.returncode == 0


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


_AS_ANOTHER = """
import os, sys
from gradian.errors import StoreError
from gradian.store.gram_cache import find_gram, write_gram
from gradian.store.reader import IndexReader
if os.getuid() == 0:
    os.setgid(65534); os.setuid(65534)
there, not_there = (IndexReader.open(path) for path in sys.argv[1:])
find_gram(there, sys.exit).block(0)
assert find_gram(not_there, sys.exit) is None
try:
    write_gram(not_there, sys.exit, sys.exit)
except StoreError as error:
    assert "cannot be written" in str(error), error
else:
    sys.exit("it was written")
"""


def test_a_read_only_cache_serves_the_file_and_refuses_to_make_one(cache: Path) -> None:
    there, not_there = build(cache / "a"), build(cache / "b")
    write(there)
    before = digests(cache)
    paths = [cache, *cache.rglob("*")]
    for path in paths:
        path.chmod(0o555 if path.is_dir() else 0o444)
    done = subprocess.run(
        [sys.executable, "-c", _AS_ANOTHER, str(there.path), str(not_there.path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    for path in paths:
        path.chmod(0o755)
    assert done.returncode == 0, done.stderr
    assert digests(cache) == before
