"""Reading files of a folder that nobody vouches for: what cannot be read becomes a reason, never an exception."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Any

from gradian.jsonvalue import parse_json
from gradian.runs.artifact import Unread

MEBIBYTE = 1 << 20
# A row a step for 400,000 steps; parsing takes about ten times as much memory.
JSON_LIMIT = 128 * MEBIBYTE
TEXT_LIMIT = 4 * MEBIBYTE
_LFS_HEAD = b"version https://git-lfs.github.com/spec/"
LFS_POINTER = "Git LFS pointer, file not downloaded"


class RunFiles:
    """The files of one folder, by their names relative to it.

    Attributes:
        folder: the folder.
        unread: what was there and could not be read, in order; each file once.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.unread: list[Unread] = []
        self._root = folder.resolve()
        self._folders: tuple[str, ...] | None = None

    def refuse(self, name: str, reason: str) -> None:
        """Note that a file was not read."""
        entry = Unread(name, reason)
        if all(known.file != name for known in self.unread):
            self.unread.append(entry)

    def has(self, name: str) -> bool:
        """Whether something of that name is there, readable or not."""
        return os.path.lexists(self.folder / name)

    def folders(self) -> tuple[str, ...]:
        """Names of the folders in it, sorted; links that lead out of it are left out."""
        if self._folders is None:
            try:
                with os.scandir(self.folder) as entries:
                    self._folders = tuple(sorted(entry.name for entry in entries if self._holds(entry)))
            except OSError as error:
                self.refuse(".", _reason(error))
                self._folders = ()
        return self._folders

    def _holds(self, entry: os.DirEntry[str]) -> bool:
        try:
            return entry.is_dir() and (not entry.is_symlink() or self._inside(self.folder / entry.name))
        except OSError:  # A link to itself.
            return False

    def regular(self, name: str) -> Path | None:
        """Return the path of a plain file with content of its own, or None with the reason noted.

        None without a reason where there is nothing of that name.
        """
        if not self.has(name):
            return None
        path = self.folder / name
        try:
            if not self._inside(path):
                self.refuse(name, "a link that leads out of the run folder")
                return None
            kind = path.stat().st_mode
            if not stat.S_ISREG(kind):
                self.refuse(name, "a folder, not a file" if stat.S_ISDIR(kind) else "not a plain file")
                return None
            with path.open("rb") as file:
                head = file.read(len(_LFS_HEAD))
        except OSError as error:
            self.refuse(name, _reason(error))
            return None
        if head == _LFS_HEAD:
            self.refuse(name, LFS_POINTER)
            return None
        return path

    def content(self, name: str, limit: int) -> bytes | None:
        """Return a file's bytes, or None with the reason noted; `limit` in bytes."""
        path = self.regular(name)
        if path is None:
            return None
        try:
            with path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                data = file.read(limit + 1) if size <= limit else b""
        except (OSError, MemoryError) as error:
            self.refuse(name, _reason(error))
            return None
        if max(size, len(data)) > limit:
            self.refuse(name, f"{size / MEBIBYTE:.1f} MiB; at most {limit / MEBIBYTE:.0f} MiB are read")
            return None
        return data

    def text(self, name: str, limit: int = TEXT_LIMIT) -> str | None:
        """Return a file's UTF-8 text, or None with the reason noted."""
        data = self.content(name, limit)
        try:
            return None if data is None else data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            self.refuse(name, f"not UTF-8 text: byte {error.start}")
            return None

    def head(self, name: str, size: int) -> str | None:
        """Return the first `size` bytes of a log as text; what is not UTF-8 is replaced."""
        path = self.regular(name)
        if path is None:
            return None
        try:
            with path.open("rb") as file:
                return file.read(size).decode("utf-8", errors="replace")
        except OSError as error:
            self.refuse(name, _reason(error))
            return None

    def json(self, name: str, limit: int = JSON_LIMIT) -> dict[str, Any] | None:
        """Return the object in a JSON file, or None with the reason noted. NaN and Infinity are read as numbers."""
        text = self.text(name, limit)
        if text is None:
            return None
        try:
            data = parse_json(text)
        except ValueError as error:
            self.refuse(name, f"not JSON: {error}")
            return None
        if not isinstance(data, dict):
            self.refuse(name, f"not a JSON object but a {type(data).__name__}")
            return None
        return data

    def _inside(self, path: Path) -> bool:
        try:
            target = path.resolve(strict=False)
        except (OSError, RuntimeError):  # A link to itself.
            return False
        if target.is_relative_to(self._root):
            return True
        # In the hub's download cache a snapshot's files are links to the blobs beside it.
        return self._root.parent.name == "snapshots" and target.parent == self._root.parent.parent / "blobs"


def _reason(error: BaseException) -> str:
    if isinstance(error, OSError) and error.errno in (errno.EACCES, errno.EPERM):
        return "no permission to read it"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror[0].lower() + error.strerror[1:]
    return type(error).__name__
