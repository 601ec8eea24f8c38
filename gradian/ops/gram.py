"""K = G G^T: dot products of all stored gradient rows of one block with each other.

With K at hand DataInf needs one read of the store instead of two (see `gradian.engines.datainf`), and the
exact damped inverse is a solve of size n: (1/n G^T G + lambda I)^-1 applied to g_q scores n (K + n lambda I)^-1 D
with D = G g_q.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from gradian.ops._dispatch import Op

OP = Op[Any]("gram", stored=True)

# Rows and columns widened at a time: two tiles of 8 MB and one product of 0.5 MB.
ROWS = 256
COLUMNS = 4096


def _pieces(segments: Sequence[Tensor]) -> Iterator[tuple[slice, Tensor]]:
    """Yield (rows covered, at most ROWS rows of one segment)."""
    start = 0
    for segment in segments:
        for piece in torch.split(segment, ROWS):
            yield slice(start, start + len(piece)), piece
            start += len(piece)


@OP.implementation("reference")
def gram_reference(segments: Sequence[Tensor], *, threads: int | None = None) -> Tensor:
    """The definition in pure torch; see `gram`. Leaves the number of threads to torch."""
    n, d = sum(len(segment) for segment in segments), segments[0].shape[1]
    out = torch.empty(n, n, dtype=torch.float32)
    for rows, left in _pieces(segments):
        for columns, right in _pieces(segments):
            if columns.start > rows.start:
                break
            # In float64: a BLAS sums hundreds of float32 products in a row, which is off by more than
            # the bound where all terms have one sign, as they have on the diagonal.
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


def gram(segments: Sequence[Tensor], *, threads: int | None = None, impl: str | None = None) -> Tensor:
    """Return the dot product of every row with every row.

    Memory: the result, and tiles of a few megabytes.

    Args:
        segments: consecutive rows of one block, each [b_k, d] float32 or float16, all of one dtype; n rows.
        threads: number of threads; None takes torch's. The bits do not depend on it.
        impl: implementation to use; None leaves the choice to `gradian.ops._dispatch`.

    Returns:
        float32 [n, n], symmetric to the bit.

    Raises:
        ValueError: the segments do not fit each other, or are no rows of a store.
        OpUnavailableError: `impl` cannot run here.
    """
    if not segments or (threads is not None and threads < 1):
        raise ValueError(f"want one segment or more and threads >= 1, got {len(segments)} and {threads}")
    first = segments[0]
    for segment in segments:
        if (
            segment.dim() != 2
            or segment.dtype not in (torch.float32, torch.float16)
            or segment.dtype != first.dtype
            or segment.shape[1] != first.shape[1]
        ):
            raise ValueError(
                f"want float32 or float16 [b, d] segments of one dtype and width, got {segment.dtype} "
                f"{tuple(segment.shape)} beside {first.dtype} {tuple(first.shape)}"
            )
    product: Tensor = OP.choose(first, impl)(segments, threads=threads)
    return product
