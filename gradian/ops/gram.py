"""K = G G^T: dot products of all stored gradient rows of one block with each other.

With K at hand DataInf needs one read of the store instead of two (see `gradian.engines.datainf`), and the
exact damped inverse is a solve of size n: with D = G g_q, the scores of (1/n G^T G + lambda I)^-1 g_q are
n (K + n lambda I)^-1 D.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gradian.ops._dispatch import Op, cpu_obstacle, native
from gradian.ops.stored_rows import check_segments, native_rows, row_tiles, thread_count

OP = Op[Any]("gram", stored=True)

# Columns widened to float64 at a time.
COLUMNS = 4096


@OP.implementation("reference")
def gram_reference(segments: Sequence[Tensor], threads: int) -> Tensor:
    """The definition in pure torch, on as many threads as torch uses; see `gram`."""
    n, d = sum(map(len, segments)), segments[0].shape[1]
    out = torch.empty(n, n, dtype=torch.float32)
    for rows, left in row_tiles(segments):
        for columns, right in row_tiles(segments):
            if columns.start > rows.start:
                break
            # In float64: a BLAS sums up to thousands of float32 products in a row, which may be off by more
            # than the bound where all terms have one sign, as they have on the diagonal.
            total = torch.zeros(len(left), len(right), dtype=torch.float64)
            for start in range(0, d, COLUMNS):
                part = slice(start, start + COLUMNS)
                total.addmm_(left[:, part].double(), right[:, part].double().T)
            tile = total.float()
            if columns == rows:
                tile = tile.tril() + tile.tril(-1).T
            out[rows, columns] = tile
            out[columns, rows] = tile.T
    return out


@OP.implementation("native", cpu_obstacle)
def _native_gram(segments: Sequence[Tensor], threads: int) -> Tensor:
    arrays, dtype = native_rows(segments)
    return torch.from_numpy(native().gram(arrays, dtype, segments[0].shape[1], threads))


def gram(segments: Sequence[Tensor], *, threads: int | None = None, impl: str | None = None) -> Tensor:
    """Return the dot product of every stored row with every stored row.

    Memory: the result, tiles of a few megabytes, and for each thread of the compiled code 64 x n float64.

    Args:
        segments: the rows G, n in all: contiguous [rows_k, d], float32, float16 or bfloat16, as stored.
        threads: of the compiled code; as many as torch uses if None. The result does not depend on it.
        impl: implementation to use; None leaves the choice to `gradian.ops._dispatch`.

    Returns:
        G G^T, float32 [n, n], symmetric to the bit.

    Raises:
        ValueError: a shape or dtype does not fit, or there is no segment.
        OpUnavailableError: `impl` cannot run here.
    """
    if not segments:
        raise ValueError("want one segment of rows or more, got none")
    check_segments(segments, segments[0].shape[-1])
    product: Tensor = OP.choose(segments[0], impl)(segments, thread_count(threads))
    return product
