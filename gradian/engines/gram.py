"""When the Gram matrices of an index are built, and how an engine gets at them."""

from __future__ import annotations

import logging
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

from gradian.address_space import address_space_left, is_out_of_memory
from gradian.errors import StoreError
from gradian.ops.gram import gram
from gradian.progress import Progress
from gradian.store.gram_cache import GramFile, find_gram, write_gram
from gradian.store.reader import IndexReader

log = logging.getLogger(__name__)

# Products and sums that a core does while it reads one byte of a store in page cache: about 30 a nanosecond
# against 8 bytes.
MACS_PER_BYTE = 4.0
# Most bytes of Gram matrices for each byte of the store that `auto` adds.
MAX_SHARE = 0.1
_GRAM_ITEM_BYTES = 4


def building_pays(
    n: int, blocks: int, elements: int, item_bytes: int, *, queries: int, sweeps: int = 1
) -> bool:
    """Whether building the Gram matrices costs less than the queries of this run save by them.

    In products for each stored element, a read of the store counted by `MACS_PER_BYTE`: every row meets every
    row once, n / 2 and one read; a query without K takes 3 and each sweep two reads, with K 1 and one read, and
    the same once more for each element of K, of which there are n * blocks / elements to a stored one.

    Args:
        n: rows of the store.
        blocks: its blocks.
        elements: elements of one row, all blocks together.
        item_bytes: bytes of a stored element.
        queries: queries of this run.
        sweeps: passes over the store that share them.
    """
    share = n * blocks / elements
    read, gram_read = MACS_PER_BYTE * item_bytes, MACS_PER_BYTE * _GRAM_ITEM_BYTES
    build = n / 2 + read + share * 2 * gram_read
    streamed = 3 * queries + 2 * read * sweeps
    cached = queries + read * sweeps + share * (queries + gram_read * sweeps)
    return share * _GRAM_ITEM_BYTES <= MAX_SHARE * item_bytes and build + cached < streamed


def gram_matrices(
    reader: IndexReader,
    policy: Literal["auto", "always", "never"],
    *,
    queries: int,
    sweeps: int = 1,
    threads: int | None = None,
    progress: Progress,
) -> GramFile | None:
    """The Gram matrices of an index, built if the policy says so; None means that engines read the index.

    They change no score beyond rounding, so whatever keeps them from being written or believed is logged and
    never an error.

    Args:
        reader: the index.
        policy: `engine.gram` of the config.
        queries: queries of this run.
        sweeps: passes over the store that share them.
        threads: see EngineSettings.
        progress: shows how far a build is, block by block.
    """
    if policy == "never":
        return None
    found = find_gram(reader, log.warning)
    elements = sum(spec.size for spec in reader.blocks)
    pays = building_pays(
        reader.n,
        len(reader.blocks),
        elements,
        np.dtype(reader.dtype).itemsize,
        queries=queries,
        sweeps=sweeps,
    )
    if found is not None and not _leaves_room(found.block_bytes):
        _tell(reader, policy, "the limit on address space leaves too little to map them")
        return None
    if found is not None or (policy == "auto" and not pays):
        return found
    largest = max(spec.size for spec in reader.blocks)
    if not _fits(reader.n, largest, np.dtype(reader.dtype).itemsize):
        _tell(reader, policy, "the limit on address space leaves too little to build them")
        return None
    try:
        with progress.task("Gram matrices", len(reader.blocks)) as advance:

            def compute(block: int) -> npt.NDArray[np.float32]:
                segments = [torch.from_numpy(rows) for _, rows in reader.tiles(block)]
                values: npt.NDArray[np.float32] = gram(segments, threads=threads).numpy()
                advance(1)
                return values

            return write_gram(reader, compute, log.info)
    except StoreError as error:
        # An index that cannot be read meets its reader again in the scores.
        _tell(reader, policy, str(error))
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        _tell(reader, policy, "there is too little memory to build them")
    return None


def _fits(n: int, elements: int, item_bytes: int) -> bool:
    """Whether a block of the store, its K and the sums behind it can be in address space together."""
    return _leaves_room(n * elements * item_bytes + 3 * _GRAM_ITEM_BYTES * n * n)


def _leaves_room(size: int) -> bool:
    """Whether so many bytes leave half of the address space to everything else."""
    left = address_space_left()
    return left is None or size <= left // 2


def _tell(reader: IndexReader, policy: str, why: str) -> None:
    level = logging.WARNING if policy == "always" else logging.INFO
    log.log(level, "index %s: scored without Gram matrices: %s", reader.id, why)
