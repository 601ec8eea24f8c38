"""The k lowest and the k highest scores of each query, from scores that come a few rows at a time.

All scores of n examples on m queries take 8 n m bytes; what a reader looks at is the ends of each query's
ranking. A fold keeps those and lets the rest go.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gradian.ops._dispatch import Op, cpu_obstacle, native
from gradian.ops.stored_rows import thread_count

OP = Op[Any]("top_k", stored=True)


@dataclass(eq=False)
class TopK:
    """The ends of m rankings over the rows seen so far; made by `TopK.empty`, filled by `top_k`.

    Equal scores rank by row number, lower first, on both ends. Only the first `width` columns are filled.

    Attributes:
        lowest: float64 [m, k], rising.
        lowest_rows: int64 [m, k], the row that each of them belongs to.
        highest: float64 [m, k], falling.
        highest_rows: int64 [m, k].
        seen: rows folded so far.
    """

    lowest: Tensor
    lowest_rows: Tensor
    highest: Tensor
    highest_rows: Tensor
    seen: int = 0

    @classmethod
    def empty(cls, queries: int, k: int) -> TopK:
        """Return the state before the first row, for m = `queries` rankings.

        Raises:
            ValueError: a number is below 1.
        """
        if queries < 1 or k < 1:
            raise ValueError(f"queries and k are at least 1, not {queries} and {k}")
        shape = (queries, k)
        rows = torch.full(shape, -1, dtype=torch.int64)
        worst = torch.full(shape, torch.inf, dtype=torch.float64)
        return cls(worst, rows, -worst, rows.clone())

    @property
    def width(self) -> int:
        """min(k, rows seen)."""
        return min(self.lowest.shape[1], self.seen)


@OP.implementation("reference")
def top_k_reference(best: TopK, scores: Tensor) -> None:
    """The definition in pure torch: a stable sort of what was kept and what is new; see `top_k`."""
    if bool(scores.isnan().any()):
        raise ValueError("a score is not a number")
    kept, k = best.width, best.lowest.shape[1]
    rows = torch.arange(best.seen, best.seen + len(scores)).expand(scores.shape[1], -1)
    ends = ((best.lowest, best.lowest_rows, False), (best.highest, best.highest_rows, True))
    for values, numbers, falling in ends:
        # Kept rows stand before new ones, so that a stable sort leaves ties in the order of row numbers.
        candidates = torch.cat([values[:, :kept], scores.T], dim=1)
        order = candidates.sort(dim=1, descending=falling, stable=True).indices[:, :k]
        width = order.shape[1]
        numbers[:, :width] = torch.cat([numbers[:, :kept], rows], dim=1).gather(1, order)
        values[:, :width] = candidates.gather(1, order)
    best.seen += len(scores)


@OP.implementation("native", cpu_obstacle)
def _native_top_k(best: TopK, scores: Tensor) -> None:
    native().fold_top_k(
        best.lowest.numpy(),
        best.lowest_rows.numpy(),
        best.highest.numpy(),
        best.highest_rows.numpy(),
        best.seen,
        scores.contiguous().numpy(),
        thread_count(None),
    )
    best.seen += len(scores)


def top_k(best: TopK, scores: Tensor, impl: str | None = None) -> None:
    """Take the next rows into the ends of the rankings, in place.

    The result depends neither on how the rows were cut into calls nor on the number of threads. Meant for a k
    of a few dozen: a row that enters a list moves what stands behind it.

    Args:
        best: the state after the rows before these.
        scores: float64 [b, m], the scores of the rows `best.seen`, `best.seen` + 1, ...; infinities rank.
        impl: implementation to use; None leaves the choice to `gradian.ops._dispatch`.

    Raises:
        ValueError: shape or dtype do not fit, or a score is NaN; after that one `best` is of no use.
        OpUnavailableError: `impl` cannot run here.
    """
    m = best.lowest.shape[0]
    if scores.dim() != 2 or scores.shape[1] != m or scores.dtype != torch.float64:
        raise ValueError(f"scores must be float64 [b, {m}], not {scores.dtype} {tuple(scores.shape)}")
    OP.choose(scores, impl)(best, scores)
