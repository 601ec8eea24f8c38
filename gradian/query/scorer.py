"""Score an index against queries. THE sign convention lives here.

A POSITIVE score means that the example reinforced the queried behaviour; a NEGATIVE score means that it
degraded it. With g_q the gradient of a loss that is low when the behaviour is there (the loss of the
expected answer, minus that of what the model said), and g_j the gradient of the example's own loss,
<g_q, H^-1 g_j> > 0 says that descending on the example descends on the query too. Removing example j
changes the query's loss by score_j / n to first order: harmful examples predict a fall.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.stats import rankdata
from torch import Tensor

from gradian.engines import ENGINES, BlockView, EngineSettings, GradientStore, GramStore, TransformedQuery
from gradian.errors import GradientError
from gradian.types import FloatArray, Scores


@dataclass(frozen=True, eq=False)
class QueryGradients:
    """m query gradients, block by block.

    Attributes:
        ids: what each query is about, m of them.
        blocks: per block float32 [m, d_l].
    """

    ids: tuple[str, ...]
    blocks: tuple[Tensor, ...]


def score_index(
    store: GradientStore,
    queries: QueryGradients,
    engines: Sequence[str],
    settings: EngineSettings,
    *,
    normalize_query: bool = False,
    gram: GramStore | None = None,
    progress: Callable[[int], None] | None = None,
) -> dict[str, Scores]:
    """Score every example of an index on every query, with several engines in one sweep.

    The store is streamed block by block; beside the scores (n x m) memory holds one block's queries.

    Args:
        store: an open index of n examples.
        queries: m query gradients over the same blocks.
        engines: names from the registry.
        settings: damping, learning rate and threads.
        normalize_query: scale each query to unit norm, for curvature-free engines only.
        gram: the Gram matrices of the index, with which DataInf reads the index once; None streams it twice.
        progress: called with the number of blocks done since the last call.

    Returns:
        Per engine, Scores with values float64 [m, n].

    Raises:
        UnknownNameError: no such engine.
        GradientError: a score is not finite.
    """
    entries = {name: ENGINES[name] for name in engines}
    check_blocks(store, queries)
    totals = {name: torch.zeros(store.n, len(queries.ids), dtype=torch.float64) for name in entries}
    # Curvature engines first: they leave the dot products behind, which the others then reuse.
    order = sorted(entries, key=lambda name: entries[name].curvature_free)
    for index, block_queries in enumerate(queries.blocks):
        view = BlockView(store, index, block_queries, settings.threads, gram=gram)
        for name in order:
            totals[name] += entries[name].score_block(view, settings)
        if progress is not None:
            progress(1)
    if normalize_query:
        scale = unit_norm_scale(queries)
        for name, entry in entries.items():
            if entry.curvature_free:
                totals[name] *= scale
    scores = {
        name: Scores(name, np.ascontiguousarray(total.T.numpy()), queries.ids)
        for name, total in totals.items()
    }
    for name, result in scores.items():
        check_finite(name, queries.ids, result.values)
    return scores


def transform_queries(
    store: GradientStore,
    queries: QueryGradients,
    engine: str,
    settings: EngineSettings,
    progress: Callable[[int], None] | None = None,
) -> list[TransformedQuery]:
    """Return per block what the engine makes of the queries before they meet the rows.

    A row's score is the sum over blocks of its gradient's product with them; see `TransformedQuery`. At most one
    read of the store.

    Args:
        store: an open index.
        queries: m query gradients over the same blocks.
        engine: name from the registry.
        settings: damping, learning rate and threads.
        progress: called after each block.

    Raises:
        UnknownNameError: no such engine.
        GradientError: the queries are over other blocks.
    """
    entry = ENGINES[engine]
    check_blocks(store, queries)
    transformed = []
    for index, block_queries in enumerate(queries.blocks):
        view = BlockView(store, index, block_queries, settings.threads, keep_dots=False)
        transformed.append(entry.transform_query(view, settings))
        if progress is not None:
            progress(1)
    return transformed


def check_blocks(store: GradientStore, queries: QueryGradients) -> None:
    """Raise GradientError if the queries are not over the blocks of the store."""
    if [spec.size for spec in store.blocks] != [block.shape[1] for block in queries.blocks]:
        raise GradientError(
            "the query's blocks are not the index's blocks",
            found=f"{len(queries.blocks)} blocks in the query",
            expected=f"{len(store.blocks)} blocks, as `gradian show-index` lists them",
            fix="build the query with the adapter and the grads settings of the index",
        )


def check_finite(engine: str, query_ids: Sequence[str], values: FloatArray, first_row: int = 0) -> None:
    """Raise GradientError naming the first score that is not finite.

    Args:
        engine: the engine that made the scores.
        query_ids: m of them.
        values: float64 [m, rows].
        first_row: the training row that the first column is about.
    """
    if np.isfinite(values).all():
        return
    query, column = np.argwhere(~np.isfinite(values))[0]
    raise GradientError(
        "a score is not a finite number",
        where=f"engine {engine}, query {query_ids[query]}, row {first_row + column}",
        found=str(values[query, column]),
        fix="raise engine.lambda_scale, or rebuild the index with grads.storage_dtype: float32",
    )


def unit_norm_scale(queries: QueryGradients) -> Tensor:
    """Return 1 / norm of each query over all its blocks, float64 [m]; 0 for a query of zeros."""
    norms = torch.stack([block.double().square().sum(dim=1) for block in queries.blocks]).sum(dim=0).sqrt()
    return torch.where(norms > 0, 1.0 / norms, torch.zeros_like(norms))


def gradient_norms(store: GradientStore) -> FloatArray:
    """Norm of each example's whole gradient, float64 [n]."""
    norms: FloatArray = np.sqrt(store.sq_norms.sum(axis=1))
    return norms


def relative_influence(values: FloatArray, norms: FloatArray) -> FloatArray:
    """Divide each example's score by its own gradient norm.

    It answers another question than the raw score: not which row moved the behaviour most, but which row
    points most squarely at it (Barshan et al. 2020, "RelatIF", arXiv 2003.11630). A row with a huge
    gradient moves everything.

    Args:
        values: [..., n] scores.
        norms: [n] gradient norms.

    Returns:
        float64 [..., n]; 0 where the gradient is zero.
    """
    safe = np.where(norms > 0, norms, 1.0)
    return np.where(norms > 0, values / safe, 0.0)


def predicted_loss_delta_if_removed(values: FloatArray, n: int) -> FloatArray:
    """First-order change of the query's loss when the example is dropped: score / n."""
    return values / n


def rank_correlation(first: FloatArray, second: FloatArray) -> float | None:
    """Spearman correlation of two score vectors [n]; None when one of them ranks nothing.

    Ties get their mean rank, as in scipy.stats.spearmanr.
    """
    a, b = rankdata(first), rankdata(second)
    a, b = a - a.mean(), b - b.mean()
    scale = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / scale if scale > 0 else None
