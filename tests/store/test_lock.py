from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gradian.errors import StoreError
from gradian.store.lock import file_lock, index_lock

_HOLDER = """
import sys
from pathlib import Path
from gradian.store.lock import file_lock
with file_lock(Path(sys.argv[1]), 0):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_lock_is_waited_for_until_its_holder_ends_and_no_longer_than_told(tmp_path: Path) -> None:
    path, told = tmp_path / "lock", []
    command = [sys.executable, "-c", _HOLDER, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdin is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(TimeoutError), file_lock(path, 0.2, lambda: told.append(1)):
            pytest.fail("it was held twice")
        # A process that is killed leaves nothing behind that anybody would wait for.
        holder.kill()
        with file_lock(path, 20, lambda: told.append(2)):
            pass
    with file_lock(path, 0, lambda: told.append(3)) as waited:
        assert not waited
    assert told in ([1], [1, 2])


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_where_there_are_no_locks_nobody_waits_whatever_file_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*arguments: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    (tmp_path / "index.lock").write_text("left by a process that was killed")
    with index_lock(tmp_path / "index", 0) as waited:
        assert not waited


def test_a_lock_that_fails_otherwise_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(StoreError, match="Input/output"), index_lock(tmp_path / "index", 0):
        pass


def test_a_lock_is_given_back_though_a_forked_process_still_has_its_file(tmp_path: Path) -> None:
    ready, go = os.pipe()
    with file_lock(tmp_path / "lock", 0):
        child = os.fork()
        if child == 0:
            os.close(go)
            os.read(ready, 1)
            os._exit(0)
    with file_lock(tmp_path / "lock", 0) as waited:
        assert not waited
    os.close(go)
    os.close(ready)
    os.waitpid(child, 0)


@pytest.mark.parametrize(
    "put",
    [lambda path: path.symlink_to(path.with_name("elsewhere")), os.mkfifo, Path.mkdir],
    ids=["a link", "a pipe", "a folder"],
)
def test_what_is_no_file_is_no_lock_and_nothing_is_made_through_it(
    tmp_path: Path, put: Callable[[Path], object]
) -> None:
    put(tmp_path / "index.lock")
    with pytest.raises(StoreError) as caught, index_lock(tmp_path / "index", 1):
        pytest.fail("it was taken")
    assert caught.value.where == str(tmp_path / "index")
    assert [path.name for path in tmp_path.iterdir()] == ["index.lock"]
