"""The stored gradient rows of one block, as operations on an index take them: one matrix per chunk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

# Rows widened to float32 at a time by the references; bounds the copy of a float16 segment.
TILE_ROWS = 256

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


def check_queries(segments: Sequence[Tensor], queries: Tensor) -> None:
    """Refuse queries that are not float32 [m, d], and what are not rows [rows, d] of one block.

    Raises:
        ValueError: see there and `check_segments`.
    """
    if queries.dim() != 2 or queries.dtype != torch.float32:
        raise ValueError(f"want queries float32 [m, d], got {queries.dtype} {tuple(queries.shape)}")
    check_segments(segments, queries.shape[1])


def thread_count(threads: int | None) -> int:
    """Return `threads`, or as many as torch uses.

    Raises:
        ValueError: it is below 1.
    """
    if threads is None:
        return torch.get_num_threads()
    if threads < 1:
        raise ValueError(f"threads is at least 1, not {threads}")
    return threads


def native_rows(segments: Sequence[Tensor]) -> tuple[list[npt.NDArray[Any]], str]:
    """Return the segments as the arrays and the name of their dtype that `gradian._native` takes."""
    dtype = segments[0].dtype if segments else torch.float32
    if dtype == torch.bfloat16:
        return [segment.view(torch.int16).numpy().view(np.uint16) for segment in segments], _NAMES[dtype]
    return [segment.numpy() for segment in segments], _NAMES[dtype]


def row_tiles(segments: Sequence[Tensor]) -> Iterator[tuple[slice, Tensor]]:
    """Yield (rows covered, at most TILE_ROWS of them) over all segments."""
    first = 0
    for segment in segments:
        for start in range(0, len(segment), TILE_ROWS):
            tile = segment[start : start + TILE_ROWS]
            yield slice(first, first + len(tile)), tile
            first += len(tile)
