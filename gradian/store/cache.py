"""Where indexes live: `<cache_dir>/index/<id>/`, one folder a content-addressed index."""

from __future__ import annotations

from pathlib import Path

from gradian.errors import CorruptIndexError, IncompleteIndexError, StoreError
from gradian.store.durable import discard_folder, store_errors
from gradian.store.format import is_index_id
from gradian.store.lock import index_lock
from gradian.store.reader import IndexReader


def index_path(cache_dir: str | Path, id: str) -> Path:
    """The folder of an index, whether or not it is there.

    Raises:
        ValueError: not an index id, which could name a folder elsewhere.
    """
    if not is_index_id(id):
        raise ValueError(f"an index id is 20 hex digits, not {id[:40]!r}")
    return Path(cache_dir) / "index" / id


def find_index(cache_dir: str | Path, id: str) -> IndexReader | None:
    """Open a whole index; None when there is none yet. Writes nothing, takes no lock.

    Raises:
        CorruptIndexError: it is damaged, or the folder holds another index.
        StoreError: it cannot be read.
    """
    path = index_path(cache_dir, id)
    if not _is_there(path):
        return None
    try:
        reader = IndexReader.open(path)
    except IncompleteIndexError:
        return None
    if reader.id != id:
        raise CorruptIndexError(
            "the folder holds another index",
            where=str(path),
            found=reader.id,
            expected=id,
            fix="build the index again with --force",
        )
    return reader


def remove_index(cache_dir: str | Path, id: str, wait_seconds: float = 60.0) -> None:
    """Remove an index, whole or not; nothing happens when there is none. Readers' open maps stay good.

    Raises:
        IndexLockedError: a process is writing it.
        StoreError: the cache cannot be written.
    """
    path = index_path(cache_dir, id)
    if not _is_there(path):
        return
    with index_lock(path, wait_seconds), store_errors(path):
        discard_folder(path)


def _is_there(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError as error:
        raise StoreError(
            "the cache cannot be read",
            where=str(path.parent),
            found=error.strerror,
            fix="give a cache_dir that can be read",
        ) from error
