"""Gradient dot product: the baseline without curvature."""

from __future__ import annotations

from torch import Tensor

from gradian.engines.base import BlockView, EngineSettings, engine


@engine("graddot", curvature_free=True)
def graddot(view: BlockView, settings: EngineSettings) -> Tensor:
    """Dot product of the query gradient with each example's gradient, <g_q, g_j>.

    Returns:
        float64 [n, m].
    """
    return view.dots
