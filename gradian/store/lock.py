"""One writer for an index: a file lock beside its folder.

The lock saves work; it is not what keeps an index right. On a file system whose locks do nothing two writers
write the same bytes under names of their own and rename them into place.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from gradian.errors import IndexLockedError
from gradian.store.durable import store_errors

_NO_LOCKS = frozenset({errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS})


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
    lock = FileLock(f"{folder}.lock")
    waited = False
    held = True
    with store_errors(folder):
        try:
            lock.acquire(timeout=0)
        except Timeout:
            waited = True
        except NotImplementedError:
            held = False
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            held = False
        if waited:
            if on_message:
                on_message(f"another process is writing index {folder.name}: waiting for it")
            try:
                lock.acquire(timeout=wait_seconds)
            except Timeout:
                raise IndexLockedError(
                    "another process is still writing this index",
                    where=str(folder),
                    found=f"its lock held for {wait_seconds:g} s",
                    fix="wait for that process or end it, then run the same command again",
                ) from None
    try:
        yield waited
    finally:
        if held:
            lock.release()
