"""D = G Q^T: dot products of stored gradient rows with query gradients.

This file also holds `accumulate_rows`, its transpose twin R += C^T G. The two are what every engine
reads the store for.
"""

from __future__ import annotations

import torch
from torch import Tensor

# float32 products are summed over this many columns before the sum goes on in float64, so that the
# error stays a few eps of sum|terms| however long the block is.
COLUMNS = 4096


def query_dots_reference(rows: Tensor, queries: Tensor) -> Tensor:
    """Return the dot product of every row with every query.

    Args:
        rows: [b, d] float32 or float16, as stored.
        queries: [m, d] float32.

    Returns:
        float64 [b, m].
    """
    if rows.shape[1] != queries.shape[1]:
        raise ValueError(f"rows have {rows.shape[1]} columns, queries {queries.shape[1]}")
    out = torch.zeros(rows.shape[0], queries.shape[0], dtype=torch.float64)
    for start in range(0, rows.shape[1], COLUMNS):
        columns = slice(start, start + COLUMNS)
        out += (rows[:, columns].float() @ queries[:, columns].T).double()
    return out


def accumulate_rows_reference(total: Tensor, weights: Tensor, rows: Tensor) -> None:
    """Add the weighted sums of the rows to `total`, in place: total += weights^T rows.

    Args:
        total: float64 [m, d].
        weights: float64 [b, m].
        rows: [b, d] float32 or float16, as stored.
    """
    # Weights keep 24 bits: each product is then off by at most one rounding of its own size.
    weights32 = weights.T.float()
    for start in range(0, rows.shape[1], COLUMNS):
        columns = slice(start, start + COLUMNS)
        total[:, columns] += weights32 @ rows[:, columns].float()
