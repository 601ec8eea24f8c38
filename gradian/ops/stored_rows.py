"""The stored gradient rows of one block, as operations on an index take them: one matrix per chunk.

They may come one after the other from an iterator, each let go before the next ones are asked for: then memory
and address space hold a part of the block, however large it is. No result depends on how they come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gradian.address_space import address_space_left, share_of_what_is_left

# Rows widened to float32 at a time by the references; bounds the copy of a float16 segment.
TILE_ROWS = 256

PART_BYTES = 256 << 20
"""Rows that compiled code is given at a time where they come from an iterator; less where address space is short."""

# Of address space: its stack, and what the allocator sets aside for it.
_THREAD_BYTES = 72 << 20

_NAMES = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}


def check_segments(segments: Sequence[Tensor], columns: int) -> None:
    """Refuse what are not rows of one block.

    Raises:
        ValueError: a segment is not a contiguous [rows, columns] on the CPU, or their dtypes are not all
            float32, all float16 or all bfloat16.
    """
    dtypes = {segment.dtype for segment in segments}
    if len(dtypes) > 1 or not dtypes <= set(_NAMES):
        raise ValueError(
            f"want rows of one dtype of {sorted(_NAMES.values())}, got {sorted(map(str, dtypes))}"
        )
    for segment in segments:
        if segment.dim() != 2 or segment.shape[1] != columns:
            raise ValueError(f"want rows [rows, {columns}], got {tuple(segment.shape)}")
        if segment.device.type != "cpu" or not segment.is_contiguous():
            raise ValueError(f"want contiguous rows on the CPU, got them on {segment.device.type}")


def check_queries(segments: Iterable[Tensor], queries: Tensor) -> Iterable[Tensor]:
    """Refuse queries that are not float32 [m, d], and what are not rows [rows, d] of one block.

    Returns:
        The segments; see `checked`.

    Raises:
        ValueError: see there and `check_segments`.
    """
    if queries.dim() != 2 or queries.dtype != torch.float32:
        raise ValueError(f"want queries float32 [m, d], got {queries.dtype} {tuple(queries.shape)}")
    return checked(segments, queries.shape[1])


def thread_count(threads: int | None) -> int:
    """Return `threads`, or as many as torch uses; fewer where address space is short.

    Raises:
        ValueError: it is below 1.
    """
    if threads is not None and threads < 1:
        raise ValueError(f"threads is at least 1, not {threads}")
    wanted = torch.get_num_threads() if threads is None else threads
    left = address_space_left()
    return wanted if left is None else max(1, min(wanted, left // 2 // _THREAD_BYTES))


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name that `gradian._native` has for a dtype of stored rows."""
    return _NAMES[dtype]


def native_rows(segments: Sequence[Tensor]) -> tuple[list[npt.NDArray[Any]], str]:
    """Return the segments as the arrays and the name of their dtype that `gradian._native` takes."""
    dtype = segments[0].dtype if segments else torch.float32
    if dtype == torch.bfloat16:
        return [segment.view(torch.int16).numpy().view(np.uint16) for segment in segments], _NAMES[dtype]
    return [segment.numpy() for segment in segments], _NAMES[dtype]


def checked(segments: Iterable[Tensor], columns: int) -> Iterable[Tensor]:
    """Return the segments, checked as `check_segments` does: now where they are at hand, else each as it comes."""
    if isinstance(segments, Sequence):
        check_segments(segments, columns)
        return segments
    return _checked(segments, columns)


def _checked(segments: Iterable[Tensor], columns: int) -> Iterator[Tensor]:
    like = None
    for segment in segments:
        check_segments([segment] if like is None else [like, segment], columns)
        like = torch.empty(0, columns, dtype=segment.dtype)
        yield segment
        # Or this frame would hold it while the next one is mapped.
        del segment


def row_parts(
    segments: Iterable[Tensor], multiple: Callable[[torch.dtype], int] = lambda dtype: 1
) -> Iterator[list[Tensor]]:
    """Yield the segments a part at a time; all at once where they are at hand.

    Args:
        segments: the rows of a block.
        multiple: for rows of a dtype, what the number of rows of every part but the last is a multiple of.
    """
    if isinstance(segments, Sequence):
        yield list(segments)
        return
    most = share_of_what_is_left(PART_BYTES)
    part: list[Tensor] = []
    for segment in segments:
        part.append(segment)
        del segment
        if sum(rows.nbytes for rows in part) >= most:
            count = sum(map(len, part))
            whole = count - count % multiple(part[0].dtype)
            if whole:
                # Views, which keep their segment for one part more: copies of ever other sizes would wear out the heap.
                rest = _cut(part, whole)
                yield part
                part = rest
                del rest
    if part:
        yield part


def _cut(part: list[Tensor], rows: int) -> list[Tensor]:
    """Leave the first `rows` rows in `part`, and return what was after them."""
    rest: list[Tensor] = []
    over = sum(map(len, part)) - rows
    while over:
        last = part.pop()
        keep = max(0, len(last) - over)
        rest.insert(0, last[keep:])
        if keep:
            part.append(last[:keep])
        over -= len(last) - keep
    return rest


def row_tiles(segments: Iterable[Tensor]) -> Iterator[tuple[slice, Tensor]]:
    """Yield (rows covered, at most TILE_ROWS of them) over all segments."""
    first = 0
    for segment in segments:
        for start in range(0, len(segment), TILE_ROWS):
            tile = segment[start : start + TILE_ROWS]
            yield slice(first, first + len(tile)), tile
            first += len(tile)
            del tile
        del segment
