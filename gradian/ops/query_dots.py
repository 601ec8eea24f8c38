"""D = G Q^T: dot products of stored gradient rows with query gradients."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from gradian.ops._dispatch import Op, cpu_obstacle, native
from gradian.ops.stored_rows import (
    TILE_ROWS,
    check_queries,
    native_rows,
    row_parts,
    row_tiles,
    thread_count,
)

OP = Op[Any]("query_dots", stored=True)

# float32 products are summed over this many columns before the sum goes on in float64, so that the
# error stays a few eps of sum|terms| however long the block is.
COLUMNS = 4096


def wide_pieces(tile: Tensor, buffer: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Yield (columns covered, these columns of a tile as float32), COLUMNS at a time.

    Args:
        tile: stored rows, at most TILE_ROWS of them.
        buffer: see `piece_buffer`; a piece lies in it until the next one is asked for.
    """
    for start in range(0, tile.shape[1], COLUMNS):
        columns = slice(start, start + COLUMNS)
        piece = tile[:, columns]
        if piece.dtype != torch.float32:
            piece = buffer[: piece.numel()].view(piece.shape).copy_(piece)
        yield columns, piece


def piece_buffer() -> Tensor:
    """Return what a pass over an index needs to widen its rows.

    Made anew for each piece, with what is kept made in between, it would leave a hole in the heap for each: half as
    much address space as there are rows.
    """
    return torch.empty(TILE_ROWS * COLUMNS)


def tile_dots(tile: Tensor, queries: Tensor, buffer: Tensor) -> Tensor:
    """Return the dot product of every row [b, d] with every query [m, d] float32: float64 [b, m]."""
    out = torch.zeros(tile.shape[0], queries.shape[0], dtype=torch.float64)
    for columns, piece in wide_pieces(tile, buffer):
        out += (piece @ queries[:, columns].T).double()
    return out


def joined_dots(parts: Sequence[Tensor], queries: Tensor) -> Tensor:
    """Return the dots of neighbouring rows, float64 [b_k, m] each, as one matrix."""
    if len(parts) == 1:
        return parts[0]
    return torch.cat([torch.empty(0, len(queries), dtype=torch.float64), *parts])


@OP.implementation("reference")
def query_dots_reference(segments: Iterable[Tensor], queries: Tensor, threads: int) -> Tensor:
    """The definition in pure torch, on as many threads as torch uses; see `query_dots`."""
    buffer = piece_buffer()
    return joined_dots([tile_dots(tile, queries, buffer) for _, tile in row_tiles(segments)], queries)


@OP.implementation("native", cpu_obstacle)
def _native_query_dots(segments: Iterable[Tensor], queries: Tensor, threads: int) -> Tensor:
    vectors = queries.contiguous().numpy()
    dots = []
    for part in row_parts(segments):
        arrays, dtype = native_rows(part)
        dots.append(torch.from_numpy(native().query_dots(arrays, dtype, vectors, threads)))
        # Or the next part would be mapped beside this one.
        del part, arrays
    return joined_dots(dots, queries)


def query_dots(
    segments: Iterable[Tensor], queries: Tensor, *, threads: int | None = None, impl: str | None = None
) -> Tensor:
    """Return the dot product of every stored row with every query.

    Args:
        segments: the rows G, n in all: contiguous [rows_k, d], float32, float16 or bfloat16, as stored; from an
            iterator they are let go as they are done with.
        queries: Q [m, d] float32.
        threads: of the compiled code; as many as torch uses if None. The result does not depend on it.
        impl: implementation to use; None leaves the choice to `gradian.ops._dispatch`.

    Returns:
        G Q^T, float64 [n, m].

    Raises:
        ValueError: a shape or dtype does not fit.
        OpUnavailableError: `impl` cannot run here.
    """
    rows = check_queries(segments, queries)
    dots: Tensor = OP.choose(queries, impl)(rows, queries, thread_count(threads))
    return dots
