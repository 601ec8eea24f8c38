"""TracIn over the checkpoints at hand: the adapter given."""

from __future__ import annotations

from torch import Tensor

from gradian.engines.base import BlockView, EngineSettings, engine


@engine("tracin", curvature_free=True)
def tracin(view: BlockView, settings: EngineSettings) -> Tensor:
    """Gradient dot product weighted by the checkpoint's learning rate (Pruthi et al. 2020, arXiv 2002.08484, sec. 3.2).

    score_j = sum_c lr_c <g_q^c, g_j^c>, here with the one checkpoint that the index was built from.

    Returns:
        float64 [n, m].
    """
    return settings.learning_rate * view.dots
