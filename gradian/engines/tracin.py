"""TracIn over the checkpoints at hand: the adapter given."""

from __future__ import annotations

import torch
from torch import Tensor

from gradian.engines.base import BlockView, EngineSettings, TransformedQuery, engine


def weighted_query(view: BlockView, settings: EngineSettings) -> TransformedQuery:
    """Return the queries with the learning rate as their scale."""
    rate = torch.full((len(view.queries),), settings.learning_rate, dtype=torch.float64)
    return TransformedQuery(view.queries, rate)


@engine("tracin", weighted_query, curvature_free=True)
def tracin(view: BlockView, settings: EngineSettings) -> Tensor:
    """Gradient dot product weighted by the checkpoint's learning rate (Pruthi et al. 2020, arXiv 2002.08484, sec. 3.2).

    score_j = sum_c lr_c <g_q^c, g_j^c>, here with the one checkpoint that the index was built from.

    Returns:
        float64 [n, m].
    """
    return settings.learning_rate * view.dots
