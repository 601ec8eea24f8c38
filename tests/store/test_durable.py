from __future__ import annotations

import errno
import fcntl
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from gradian.store import durable
from gradian.store.durable import PartialFile, create_file, remove_stale, replace_file, temporary_path


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "file"
    partial = PartialFile(target, 4)
    partial.write_at(b"cd", 2)
    partial.write_at(b"ab", 0)
    assert not target.exists()
    partial.commit()
    partial.discard()
    assert target.read_bytes() == b"abcd"
    assert os.listdir(tmp_path) == ["file"]


def test_a_failed_replacement_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "file"
    replace_file(target, b"old")

    def fail(fd: int) -> None:
        raise OSError(errno.EIO, "no")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="no"):
        replace_file(target, b"new")
    assert target.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_the_work_of_the_living_is_kept_and_that_of_the_dead_removed(tmp_path: Path) -> None:
    mine = PartialFile(tmp_path / "mine", 1)
    script = "import sys; from pathlib import Path; from gradian.store.durable import PartialFile;"
    script += "PartialFile(Path(sys.argv[1]), 1); print('made', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "other")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "made\n"
        forgotten = temporary_path(tmp_path / "forgotten")
        forgotten.write_bytes(b"")
        elsewhere = tmp_path / f"a.00000000-{os.getpid()}-0-00000000.partial"
        elsewhere.write_bytes(b"")
        remove_stale(tmp_path)
        assert sorted(name.split(".")[0] for name in os.listdir(tmp_path)) == ["mine", "other"]
        other.kill()
        # Killed, not yet collected: listed by the system, and dead all the same.
        os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)
        remove_stale(tmp_path)
        assert [name.split(".")[0] for name in os.listdir(tmp_path)] == ["mine"]
    mine.discard()
    assert os.listdir(tmp_path) == []


def test_a_file_that_is_replaced_loses_the_leavings_of_its_dead_writers_and_no_other_file(
    tmp_path: Path,
) -> None:
    host = temporary_path(tmp_path / "x").name.split(".")[1].split("-")[0]
    dead, alive = f"{host}-999999999-0-00000000.partial", PartialFile(tmp_path / "file", 0)
    others = {"other." + dead, "file.partial", "film.partial", "file.00000000-1-0-00000000.partial"}
    for name in ("file." + dead, *others):
        (tmp_path / name).touch()
    replace_file(tmp_path / "file", b"new")
    left = set(os.listdir(tmp_path))
    alive.discard()
    assert left - set(os.listdir(tmp_path)) != set()
    assert set(os.listdir(tmp_path)) == {"file", *others}


@pytest.mark.parametrize("links", [True, False])
def test_a_new_file_is_whole_or_not_there_and_never_in_place_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    def refuse(source: Path, target: Path) -> None:
        raise OSError(errno.EPERM, "no")

    if not links:
        monkeypatch.setattr(os, "link", refuse)
    create_file(tmp_path / "file", b"first")
    with pytest.raises(FileExistsError):
        create_file(tmp_path / "file", b"second")
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", lambda fd, data, offset: refuse(tmp_path, tmp_path))
        with pytest.raises(OSError, match="no"):
            create_file(tmp_path / "other", b"third")
    assert (tmp_path / "file").read_bytes() == b"first"
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.EINVAL])
def test_space_is_written_where_it_cannot_be_allocated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(fd: int, offset: int, size: int) -> None:
        raise OSError(number, "no")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    monkeypatch.setattr(durable, "_ZEROS", bytes(100))
    partial = PartialFile(tmp_path / "file", 250)
    partial.commit()
    assert (tmp_path / "file").read_bytes() == bytes(250)


def test_a_drive_that_has_a_cache_of_its_own_is_made_to_empty_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", lambda fd, request: asked.append(request))
    replace_file(tmp_path / "a", b"x")
    # The file and its name.
    assert asked == [51, 51]

    def refuse(fd: int, request: int) -> None:
        raise OSError(errno.ENOTSUP, "no such request")

    flushed = []
    monkeypatch.setattr(fcntl, "fcntl", refuse)
    monkeypatch.setattr(os, "fsync", flushed.append)
    replace_file(tmp_path / "a", b"y")
    assert len(flushed) == 2


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EBADF, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_that_flushes_no_folders_is_one_to_write_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    flush = os.fsync

    def refuse(fd: int) -> None:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            raise OSError(number, os.strerror(number))
        flush(fd)

    monkeypatch.setattr(os, "fsync", refuse)
    replace_file(tmp_path / "a", b"x")
    assert (tmp_path / "a").read_bytes() == b"x"
