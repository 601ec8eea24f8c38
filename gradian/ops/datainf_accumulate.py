"""What DataInf needs from its first read of a block: D = G Q^T and R = (s D)^T G, s being one factor per row.

R is the sum of DataInf's correction, sum_i s_i <g_i, q> g_i, for every query q. A row's weight is known as soon
as its dots are, so the second product takes the rows while they are still in cache.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradian.ops._dispatch import Op, cpu_obstacle, native
from gradian.ops.query_dots import joined_dots, piece_buffer, tile_dots, wide_pieces
from gradian.ops.stored_rows import (
    check_queries,
    dtype_name,
    native_rows,
    row_parts,
    row_tiles,
    thread_count,
)

OP = Op[Any]("datainf_accumulate", stored=True)


@OP.implementation("reference")
def datainf_accumulate_reference(
    segments: Iterable[Tensor], queries: Tensor, scale: Tensor, threads: int, keep_dots: bool
) -> tuple[Tensor | None, Tensor]:
    """The definition in pure torch, on as many threads as torch uses; see `datainf_accumulate`."""
    kept = torch.empty(len(scale), len(queries), dtype=torch.float64) if keep_dots else None
    total = torch.zeros(queries.shape, dtype=torch.float64)
    buffer = piece_buffer()
    for rows, tile in row_tiles(segments):
        dots = tile_dots(tile, queries, buffer)
        if kept is not None:
            kept[rows] = dots
        # Weights keep 24 bits: each product is then off by at most one rounding of its own size.
        weights = (dots * scale[rows, None]).T.float()
        for columns, piece in wide_pieces(tile, buffer):
            total[:, columns] += weights @ piece
    return kept, total


@OP.implementation("native", cpu_obstacle)
def _native_datainf_accumulate(
    segments: Iterable[Tensor], queries: Tensor, scale: Tensor, threads: int, keep_dots: bool
) -> tuple[Tensor | None, Tensor]:
    vectors, factors = queries.contiguous().numpy(), scale.contiguous().numpy()
    total = np.zeros(queries.shape)
    kept: list[Tensor] = []
    first = 0
    # Sums stand in float32 over a panel of rows: a part ends where a panel does.
    for part in row_parts(
        segments, lambda dtype: int(native().datainf_panel_rows(dtype_name(dtype), *queries.shape))
    ):
        arrays, dtype = native_rows(part)
        rows = slice(first, first + sum(map(len, part)))
        dots, total = native().datainf_accumulate(
            arrays, dtype, vectors, factors[rows], threads, keep_dots=keep_dots, total=total
        )
        kept.append(torch.from_numpy(dots))
        first = rows.stop
        # Or the next part would be mapped beside this one.
        del part, arrays
    return joined_dots(kept, queries) if keep_dots else None, torch.from_numpy(total)


def datainf_accumulate(
    segments: Iterable[Tensor],
    queries: Tensor,
    scale: Tensor,
    *,
    keep_dots: bool = True,
    threads: int | None = None,
    impl: str | None = None,
) -> tuple[Tensor | None, Tensor]:
    """Return D and sum_i float32(D_i s_i) g_i, from one read of the rows.

    Args:
        segments: the rows g_i, n in all: contiguous [rows_k, d], float32, float16 or bfloat16, as stored; from an
            iterator they are let go as they are done with.
        queries: Q [m, d] float32.
        scale: s [n] float64.
        keep_dots: return D; without it memory holds the dots of one tile.
        threads: of the compiled code; as many as torch uses if None. The result does not depend on it.
        impl: implementation to use; None leaves the choice to `gradian.ops._dispatch`.

    Returns:
        D = G Q^T, float64 [n, m], or None where it is not kept, and the weighted sums, float64 [m, d].

    Raises:
        ValueError: a shape or dtype does not fit.
        OpUnavailableError: `impl` cannot run here.
    """
    rows = check_queries(segments, queries)
    counted = sum(map(len, rows)) if isinstance(rows, Sequence) else len(scale)
    if scale.dtype != torch.float64 or scale.shape != (counted,):
        raise ValueError(f"want one float64 scale per row, got {scale.dtype} {tuple(scale.shape)}")
    result: tuple[Tensor | None, Tensor] = OP.choose(queries, impl)(
        rows, queries, scale, thread_count(threads), keep_dots
    )
    return result
