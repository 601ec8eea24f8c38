from __future__ import annotations

import os
from pathlib import Path

import pytest

from gradian.plainfile import read_plain


def test_a_file_and_a_link_to_one_are_read_up_to_the_limit(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"four")
    (tmp_path / "b").symlink_to("a")
    assert read_plain(tmp_path / "a", 4) == read_plain(tmp_path / "b", 4) == b"four"
    with pytest.raises(OSError, match="longer than 3 bytes"):
        read_plain(tmp_path / "a", 3)


def test_what_is_no_file_is_neither_waited_for_nor_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(OSError, match="not a plain file"):
            read_plain(path, 10)
    with pytest.raises(IsADirectoryError):
        read_plain(tmp_path, 10)
    with pytest.raises(FileNotFoundError):
        read_plain(tmp_path / "nowhere", 10)
