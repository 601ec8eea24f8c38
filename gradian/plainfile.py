"""A file that someone else may have put there, read as far as it may be: no pipe is waited for, no device read."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


def read_plain(path: Path, limit: int) -> bytes:
    """Return what a file holds.

    Args:
        path: the file, or a link to it.
        limit: most bytes that it may have.

    Raises:
        OSError: the system refuses, it is no plain file, or it is longer.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with os.fdopen(fd, "rb") as file:
        status = os.fstat(fd)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is not a plain file", str(path))
        if status.st_size > limit:
            raise OSError(errno.EFBIG, f"it is longer than {limit} bytes", str(path))
        return file.read(status.st_size)
