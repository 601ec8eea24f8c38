"""Gradient dot product: the baseline without curvature."""

from __future__ import annotations

import torch
from torch import Tensor

from gradian.engines.base import BlockView, EngineSettings, TransformedQuery, engine


def own_query(view: BlockView, settings: EngineSettings) -> TransformedQuery:
    """Return the queries as they are."""
    return TransformedQuery(view.queries, torch.ones(len(view.queries), dtype=torch.float64))


@engine("graddot", own_query, curvature_free=True)
def graddot(view: BlockView, settings: EngineSettings) -> Tensor:
    """Dot product of the query gradient with each example's gradient, <g_q, g_j>.

    Returns:
        float64 [n, m].
    """
    return view.dots
