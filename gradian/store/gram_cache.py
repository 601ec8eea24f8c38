"""The Gram matrices of an index's blocks, kept beside it: never needed, and never believed unread.

    <cache_dir>/index/<id>/derived/
        gram.safetensors   float32 [n, n] per block, in the order of the index
        gram.checksum      xxh3-64 of that file; written last: without it the file is not whole

The header names the index and the checksum of its manifest, so a file that another index, or another build
of this one, left behind is not taken for its own. Whatever is missing, damaged or foreign here is as good as
not there. The file goes with its index (`--force`).

float32 is enough: rounding a sum costs at most eps times the sum of its terms' magnitudes, eps = 2^-24, of the
8 that a dot product may be off.
"""

from __future__ import annotations

import errno
import os
import weakref
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from gradian.errors import CorruptIndexError, StoreError
from gradian.store.disk import check_disk_for_gram
from gradian.store.durable import PartialFile, make_own_folder, remove_stale, replace_file, store_errors
from gradian.store.format import FileLayout, checksum_bytes, checksum_file
from gradian.store.lock import index_lock
from gradian.store.reader import IndexReader, checked_file
from gradian.store.writer import DEFAULT_WAIT_SECONDS

DERIVED_FOLDER = "derived"
GRAM_FILE = "gram.safetensors"
CHECKSUM_FILE = "gram.checksum"

_CHECKSUM_LINE_BYTES = 64


class GramFile:
    """The Gram matrices of one index, checked; made by `find_gram` and `write_gram`."""

    def __init__(self, fd: int, layout: FileLayout) -> None:
        self._slots = tuple(layout.slots.values())
        self._layout = layout
        self._file = os.fdopen(os.dup(fd), "rb")
        weakref.finalize(self, self._file.close)

    @property
    def block_bytes(self) -> int:
        """Bytes of the largest K, which are mapped at once."""
        return max(slot.stop - slot.start for slot in self._slots)

    def block(self, block: int) -> npt.NDArray[np.float32]:
        """K = G G^T of one block: float32 [n, n], a private map of the file.

        Raises:
            StoreError: there is no address space for it.
        """
        slot = self._slots[block]
        try:
            return np.memmap(
                self._file, slot.numpy_dtype, mode="c", offset=self._layout.offset(slot), shape=slot.shape
            )
        except OSError as error:
            raise StoreError(
                "a Gram matrix cannot be mapped",
                where=f"block {slot.name}",
                found=error.strerror,
                fix="raise the limit on address space (ulimit -v), or set engine.gram: never",
            ) from error


def gram_layout(reader: IndexReader) -> FileLayout:
    """The file that holds the Gram matrices of an index."""
    metadata = {
        "index": reader.id,
        "kind": "gradian-gram",
        "manifest": checksum_bytes(reader.manifest.to_json().encode()),
    }
    return FileLayout.of(metadata, [(block.name, "float32", (reader.n, reader.n)) for block in reader.blocks])


def find_gram(reader: IndexReader, on_message: Callable[[str], None]) -> GramFile | None:
    """Open the Gram matrices of an index, every byte checked; None when there are none to rely on.

    Writes nothing, takes no lock.

    Args:
        reader: the index.
        on_message: told, in a sentence, why a file that is there is not used.
    """
    path = reader.path / DERIVED_FOLDER
    try:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    except OSError as error:
        on_message(f"{path}: the Gram matrices are not used: {error.strerror}")
        return None
    layout, where = gram_layout(reader), path / GRAM_FILE
    try:
        if not _exists(folder, GRAM_FILE):
            return None
        with checked_file(folder, GRAM_FILE, where, layout) as fd:
            if not _is_vouched_for(folder, checksum_file(fd)):
                raise CorruptIndexError("the checksum does not match", where=str(where))
            return GramFile(fd, layout)
    except (StoreError, OSError) as error:
        problem = error.problem if isinstance(error, StoreError) else error.strerror
        on_message(f"{where}: the Gram matrices are not used: {problem}")
        return None
    finally:
        os.close(folder)


def write_gram(
    reader: IndexReader,
    compute: Callable[[int], npt.NDArray[np.float32]],
    on_message: Callable[[str], None],
    *,
    wait_seconds: float = DEFAULT_WAIT_SECONDS,
) -> GramFile:
    """Compute the Gram matrices of an index and keep them, unless another process just did.

    Args:
        reader: the index.
        compute: gives K of a block, float32 [n, n].
        on_message: told, in a sentence, what takes long.
        wait_seconds: longest wait for another process that writes beside this index.

    Raises:
        DiskSpaceError: no space; raised before anything is computed.
        IndexLockedError: another process was not done in time.
        StoreError: the cache cannot be written, or does not give back what was written.
    """
    folder, layout = reader.path / DERIVED_FOLDER, gram_layout(reader)
    with index_lock(reader.path, wait_seconds, on_message), store_errors(folder):
        found = find_gram(reader, lambda message: None)
        if found is not None:
            return found
        # An index that is gone must not come back as an empty folder.
        make_own_folder(folder)
        remove_stale(folder)
        check_disk_for_gram(reader.path, layout.size)
        partial = PartialFile(folder / GRAM_FILE, layout.size)
        try:
            partial.write_at(layout.header, 0)
            for block, slot in enumerate(layout.slots.values()):
                values = np.ascontiguousarray(compute(block), dtype=slot.numpy_dtype)
                if values.shape != slot.shape:
                    raise ValueError(f"block {slot.name!r} has K {slot.shape}, not {values.shape}")
                partial.write_at(values.reshape(-1).view(np.uint8).data, layout.offset(slot))
            line = _checksum_line(partial.checksum())
            partial.commit()
        finally:
            partial.discard()
        replace_file(folder / CHECKSUM_FILE, line)
    written = find_gram(reader, on_message)
    if written is None:
        raise StoreError(
            "the Gram matrices are not what was written",
            where=str(folder / GRAM_FILE),
            fix="set engine.gram: never, and have the disk checked",
        )
    return written


def _checksum_line(checksum: str) -> bytes:
    return f"{checksum}  {GRAM_FILE}\n".encode()


def _is_vouched_for(folder: int, checksum: str) -> bool:
    try:
        fd = os.open(CHECKSUM_FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    except FileNotFoundError:
        return False
    try:
        return os.read(fd, _CHECKSUM_LINE_BYTES) == _checksum_line(checksum)
    finally:
        os.close(fd)


def _exists(folder: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except OSError as error:
        if error.errno != errno.ENOENT:
            raise
        return False
    return True
