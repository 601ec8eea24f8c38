"""Files that are either whole or not there, whatever happens in between.

A file is written under a temporary name (`*.partial`) at its final size, flushed, renamed, and the rename is
flushed. Space is allocated, never mapped sparse: a full disk is an error of a call here, not a SIGBUS later.

The temporary name says who writes it (host, process, start of the process), so that a second writer, on
a file system whose locks do nothing, removes the leavings of the dead and not the work of the living.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import shutil
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gradian.errors import DiskSpaceError, StoreError
from gradian.store.format import checksum_file

_SUFFIX = ".partial"
_OWNER = re.compile(r"\.([0-9a-f]{8})-(\d+)-(\d+)-[0-9a-f]{8}\.partial$")
_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_NOT_ALLOWED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_CANNOT_ALLOCATE = frozenset({errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS})
_NO_FLUSH_OF_FOLDERS = frozenset({errno.EINVAL, errno.EBADF, errno.EOPNOTSUPP, errno.ENOSYS})
_CANNOT_LINK = frozenset({errno.EOPNOTSUPP, errno.EPERM, errno.ENOSYS, errno.EMLINK})
_ZEROS = bytes(1 << 20)

# Temporary names that this very process is writing now.
_active: set[str] = set()


@contextmanager
def store_errors(where: Path) -> Iterator[None]:
    """Turn what the file system refuses into a typed error that says what to do.

    Raises:
        DiskSpaceError: the disk or the quota is full.
        StoreError: anything else.
    """
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno in _NO_SPACE:
            raise DiskSpaceError(
                f"the index does not fit ({reason})",
                where=str(where),
                fix="free space, or give another cache_dir; what was committed is kept, and the same command goes on from there",
            ) from error
        if error.errno in _NOT_ALLOWED:
            raise StoreError(
                f"the index cannot be written here ({reason})",
                where=str(where),
                fix="give a cache_dir that can be written; a read-only cache serves whole indexes only",
            ) from error
        raise StoreError(
            f"the index could not be written ({reason})",
            where=str(where),
            fix="if cache_dir can hold files, run the same command again: it goes on from the last committed chunk",
        ) from error


def make_folder(path: Path) -> None:
    """Create a folder and its parents, each flushed into its parent."""
    path.mkdir(parents=True, exist_ok=True)
    # Those that were there too: whoever made one may have been killed before it was flushed.
    for folder in path.parents:
        with suppress(PermissionError):
            sync_folder(folder)


def make_own_folder(path: Path) -> None:
    """Create a folder that belongs to what lies around it; a link in its place would lead the work elsewhere.

    Raises:
        NotADirectoryError: a link or a file has that name.
    """
    # Without parents: what the folder belongs to must be there.
    with suppress(FileExistsError):
        os.mkdir(path)
    if not stat.S_ISDIR(os.lstat(path).st_mode):
        raise NotADirectoryError(errno.ENOTDIR, "a link or a file is in the place of a folder", str(path))
    sync_folder(path.parent)


def flush(fd: int) -> None:
    """Wait until what was written to an open file or folder is on the medium."""
    if hasattr(fcntl, "F_FULLFSYNC"):
        # On macOS fsync leaves it in the drive's own cache, which goes with the power.
        with suppress(OSError):
            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
            return
    os.fsync(fd)


def sync_folder(path: Path) -> None:
    """Flush a folder's own entries: a rename is not on the disk before that."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        flush(fd)
    except OSError as error:
        # Some network file systems have no such call for folders.
        if error.errno not in _NO_FLUSH_OF_FOLDERS:
            raise
    finally:
        os.close(fd)


def write_all(fd: int, data: bytes | memoryview, offset: int | None = None) -> None:
    """Write all the bytes, at `offset` or (None) at the descriptor's own position."""
    view = memoryview(data)
    while len(view):
        done = os.write(fd, view) if offset is None else os.pwrite(fd, view, offset)
        view = view[done:]
        offset = None if offset is None else offset + done


def append_line(path: Path, line: bytes) -> None:
    """Add a line to a file, which is made where there is none, and flush it."""
    fd = open_own(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        write_all(fd, line)
        flush(fd)
    finally:
        os.close(fd)


def create_or_read(path: Path, limit: int) -> bytes:
    """What a file holds, as `read_file`; an empty one is made, for good, where there is none."""
    data = read_file(path, limit, create=True)
    if not data:
        sync_folder(path.parent)
    return data


def read_file(path: Path, limit: int, *, create: bool = False) -> bytes:
    """What a file holds, at most `limit` bytes.

    Raises:
        OSError: the system refuses, or it is a link, a pipe or anything else that is no file.
    """
    fd = open_own(path, os.O_RDONLY | (os.O_CREAT if create else 0))
    try:
        return read_open(fd, limit)
    finally:
        os.close(fd)


def open_own(path: Path, flags: int) -> int:
    """Open a file that belongs to what lies around it; one that is made has the usual mode.

    Raises:
        OSError: the system refuses, or it is a link, a pipe or anything else that is no file.
    """
    fd = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return fd


def read_open(fd: int, limit: int) -> bytes:
    """What an open file holds from its position on, at most `limit` bytes; no more memory is taken than that needs."""
    with os.fdopen(fd, "rb", closefd=False) as file:
        return file.read(min(limit, os.fstat(fd).st_size))


def replace_file(path: Path, data: bytes) -> None:
    """Put a small file in place whole, or leave what was there."""
    remove_leavings(path)
    _put(path, data, new=False)


def create_file(path: Path, data: bytes) -> None:
    """Put a small new file in place whole, or not at all.

    Raises:
        FileExistsError: there is one.
    """
    if os.path.lexists(path):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
    _put(path, data, new=True)


def _put(path: Path, data: bytes, *, new: bool) -> None:
    partial = PartialFile(path, len(data))
    try:
        partial.write_at(data, 0)
        partial.commit(new=new)
    finally:
        partial.discard()


class PartialFile:
    """A file under a temporary name, with its space allocated.

    Args:
        target: the name it gets when it is whole.
        size: its final size in bytes.
    """

    def __init__(self, target: Path, size: int) -> None:
        self.target = target
        self.size = size
        self._path = temporary_path(target)
        _active.add(self._path.name)
        self._fd = -1
        try:
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
            _allocate(self._fd, size)
        except BaseException:
            self.discard()
            raise

    @property
    def fd(self) -> int:
        """The open file."""
        return self._fd

    def write_at(self, data: bytes | memoryview, offset: int) -> None:
        """Write bytes in place."""
        write_all(self._fd, data, offset)

    def checksum(self) -> str:
        """Checksum of what the file holds now."""
        return checksum_file(self._fd)

    def commit(self, *, new: bool = False) -> None:
        """Flush, rename to the target, flush the rename.

        Args:
            new: leave a file that has the name meanwhile alone, where the file system can (FileExistsError).
        """
        flush(self._fd)
        self._close()
        if new:
            try:
                os.link(self._path, self.target)
            except OSError as error:
                if error.errno not in _CANNOT_LINK:
                    raise
            else:
                self.discard()
                sync_folder(self.target.parent)
                return
        os.rename(self._path, self.target)
        _active.discard(self._path.name)
        sync_folder(self.target.parent)

    def discard(self) -> None:
        """Remove the file; after `commit` this does nothing."""
        with suppress(OSError):
            self._close()
        if self._path.name in _active:
            _active.discard(self._path.name)
            with suppress(OSError):
                os.unlink(self._path)

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def _allocate(fd: int, size: int) -> None:
    if size == 0:
        return
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(fd, 0, size)
        except OSError as error:
            if error.errno not in _CANNOT_ALLOCATE:
                raise
        else:
            return
    for offset in range(0, size, len(_ZEROS)):
        write_all(fd, memoryview(_ZEROS)[: size - offset], offset)


def temporary_path(target: Path) -> Path:
    """A new name beside `target` that says which process writes it."""
    pid = os.getpid()
    owner = f"{_host()}-{pid}-{_started(pid) or 0}-{os.urandom(4).hex()}"
    return target.with_name(f"{target.name}.{owner}{_SUFFIX}")


def remove_stale(folder: Path) -> None:
    """Remove temporary files and folders whose writer no longer lives, for good."""
    stale = [
        entry for entry in os.scandir(folder) if entry.name.endswith(_SUFFIX) and not _is_live(entry.name)
    ]
    for entry in stale:
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path, ignore_errors=True)
        else:
            with suppress(FileNotFoundError):
                os.unlink(entry.path)
    if stale:
        sync_folder(folder)


def remove_leavings(target: Path) -> None:
    """Remove what dead writers of this host left of one file; of a folder that is not ours, touch nothing else."""
    for name in os.listdir(target.parent):
        match = _OWNER.search(name)
        if match is None or name[: match.start()] != target.name or match[1] != _host():
            continue
        if not _is_live(name):
            with suppress(FileNotFoundError):
                os.unlink(target.with_name(name))


def discard_folder(path: Path) -> None:
    """Remove a folder: at once out of sight, then file by file. Maps that are open stay good."""
    trash = temporary_path(path)
    _active.add(trash.name)
    try:
        os.rename(path, trash)
        sync_folder(path.parent)
        shutil.rmtree(trash, ignore_errors=True)
    except FileNotFoundError:
        return
    finally:
        _active.discard(trash.name)


def _is_live(name: str) -> bool:
    match = _OWNER.search(name)
    # A writer on another host is taken for dead: its lock would have kept us out, and if it does live,
    # its rename fails cleanly.
    if match is None or match[1] != _host():
        return False
    pid = int(match[2])
    if pid == os.getpid():
        return name in _active
    started = _started(pid)
    return started is not None and started == int(match[3])


def _host() -> str:
    return hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]


def _started(pid: int) -> int | None:
    """When a process began, in clock ticks (0 where the system does not tell); None when it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        if os.path.exists("/proc/self/stat"):
            return None
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return None
        except OSError:
            return 0
        return 0
    # A killed process stays listed until its parent collects it.
    return None if fields[0] in (b"Z", b"X") else int(fields[19])
