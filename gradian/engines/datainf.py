"""DataInf: a closed-form inverse-Hessian-vector product for LoRA."""

from __future__ import annotations

import torch
from torch import Tensor

from gradian.engines.base import BlockView, EngineSettings, TransformedQuery, engine


def _row_scale(view: BlockView, damping: float) -> Tensor:
    """Return 1 / (n (lambda + ||g_i||^2)) for each row, float64 [n]."""
    return 1.0 / (view.n * (damping + view.sq_norms))


def inverse_query(view: BlockView, settings: EngineSettings) -> TransformedQuery:
    """Return r, the queries through the damped inverse; see `datainf`. One read of the block."""
    damping = view.damping(settings)
    if damping == 0.0:
        return TransformedQuery(view.queries, torch.zeros(len(view.queries), dtype=torch.float64))
    r = (view.queries.double() - view.scaled_sum(_row_scale(view, damping))) / damping
    # float32 cannot hold every 1/lambda: keep the exponent of each row outside the product.
    size = r.abs().amax(dim=1).clamp_min(torch.finfo(torch.float64).tiny)
    return TransformedQuery((r / size[:, None]).float(), size)


@engine("datainf", inverse_query, curvature_free=False)
def datainf(view: BlockView, settings: EngineSettings) -> Tensor:
    """Curvature-corrected influence in closed form (Kwon et al. 2024, arXiv 2310.00902, eq. 5).

    Swapping inverse and sum in (1/n sum_i g_i g_i^T + lambda I)^-1 and applying Sherman-Morrison to each
    term gives, per block,

        r = (1/lambda) [ g_q - (1/n) sum_i (g_i . g_q) / (lambda + ||g_i||^2) g_i ],   score_j = <r, g_j>.

    Two reads of the block: one for the dot products and r, one for the scores. With K = G G^T known, <r, g_j> is

        (1/lambda) [ D - K (D / (lambda + diag K)) / n ]_j,   D = G g_q,

    from one read, for D.

    Returns:
        float64 [n, m]; zeros for a block whose gradients are all zero, where lambda would be zero too.
    """
    damping = view.damping(settings)
    if view.gram is not None and damping > 0.0:
        weights = view.dots * _row_scale(view, damping)[:, None]
        return (view.dots - view.gram_times(weights)) / damping
    query = inverse_query(view, settings)
    return view.dots_with(query.vectors) * query.scale
