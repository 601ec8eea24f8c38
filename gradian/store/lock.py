"""One writer at a time: an advisory lock on a file beside what is written.

The lock saves work; it is not what keeps an index right. On a file system whose locks do nothing two writers
write the same bytes under names of their own and rename them into place. So where the system has no locks there
is none: a marker file in its place would outlive a killed process, and everybody would wait for the dead.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from gradian.errors import IndexLockedError
from gradian.store.durable import open_own, store_errors

_NO_LOCKS = frozenset({errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS})
_HELD = frozenset({errno.EAGAIN, errno.EWOULDBLOCK, errno.EACCES})
_POLL_SECONDS = 0.05


@contextmanager
def file_lock(path: Path, wait_seconds: float, on_wait: Callable[[], None] | None = None) -> Iterator[bool]:
    """Hold the lock of a file, which is made and stays; gives whether another process had it first.

    Args:
        path: the lock file.
        wait_seconds: longest wait for another process.
        on_wait: called once when there is something to wait for.

    Raises:
        TimeoutError: the other process was not done in time.
        OSError: the file cannot be made, or a link or anything else that is no file has its name.
    """
    fd = open_own(path, os.O_RDWR | os.O_CREAT)
    try:
        waited = not _taken(fd)
        if waited:
            if on_wait:
                on_wait()
            end = time.monotonic() + wait_seconds
            while not _taken(fd):
                if time.monotonic() >= end:
                    raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT), str(path))
                time.sleep(_POLL_SECONDS)
        try:
            yield waited
        finally:
            # A process that was forked meanwhile has the descriptor too: closing ours would not do.
            with suppress(OSError):
                fcntl.flock(fd, fcntl.LOCK_UN)
    finally:
        os.close(fd)


def _taken(fd: int) -> bool:
    """Whether the lock is ours now, or the file system has none."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _HELD:
            return False
        if error.errno not in _NO_LOCKS:
            raise
    return True


@contextmanager
def index_lock(
    folder: Path, wait_seconds: float, on_message: Callable[[str], None] | None = None
) -> Iterator[bool]:
    """Hold the write lock of an index; gives whether another process had it first.

    Args:
        folder: the index folder; the lock is the file `<folder>.lock`, which stays.
        wait_seconds: longest wait for another writer.
        on_message: told once when there is something to wait for.

    Raises:
        IndexLockedError: the other writer was not done in time.
        StoreError: the lock file cannot be made.
    """

    def waiting() -> None:
        if on_message:
            on_message(f"another process is writing index {folder.name}: waiting for it")

    with ExitStack() as held:
        with store_errors(folder):
            try:
                waited = held.enter_context(file_lock(Path(f"{folder}.lock"), wait_seconds, waiting))
            except TimeoutError:
                raise IndexLockedError(
                    "another process is still writing this index",
                    where=str(folder),
                    found=f"its lock held for {wait_seconds:g} s",
                    fix="wait for that process or end it, then run the same command again",
                ) from None
        yield waited
