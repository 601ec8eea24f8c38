"""The ends of each query's ranking and its cluster sums, without the n x m scores in between.

Scores of 200,000 examples on 1,000 queries take 1.6 GB an engine. A report names a few rows of each query, so
what it needs can be picked while the scores of one chunk are there. That wants a chunk's scores complete, over
all blocks, so the store is read twice in two orders: block by block for the transformed queries r, then chunk
by chunk for <r, g_j>.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count

import numpy as np
import torch
from torch import Tensor

from gradian.engines import ENGINES, EngineSettings, GradientStore
from gradian.ops.cluster_sums import cluster_sums
from gradian.ops.top_k import TopK, top_k
from gradian.query.scorer import QueryGradients, check_finite, transform_queries, unit_norm_scale
from gradian.types import Scores, ScoreSummary


class _Fold:
    """Summary of the rows seen so far, which come in dataset order."""

    def __init__(self, engine: str, query_ids: tuple[str, ...], n: int, k: int, assignment: Sequence[str]):
        if assignment and len(assignment) != n:
            raise ValueError(f"{len(assignment)} rows have a cluster, the index has {n}")
        self._engine = engine
        self._query_ids = query_ids
        self._best = TopK.empty(len(query_ids), k)
        number = {name: i for i, name in enumerate(dict.fromkeys(assignment))}
        self._clusters = tuple(number)
        self._cluster_of = torch.tensor([number[name] for name in assignment], dtype=torch.int64)
        self._sums = torch.zeros(len(number), len(query_ids), dtype=torch.float64)

    def add(self, scores: Tensor) -> None:
        """Take the scores of the next rows, float64 [b, m]."""
        first = self._best.seen
        check_finite(self._engine, self._query_ids, scores.T.numpy(), first)
        top_k(self._best, scores)
        if self._clusters:
            cluster_sums(self._sums, scores, self._cluster_of[first : first + len(scores)])

    def summary(self) -> ScoreSummary:
        best, width = self._best, self._best.width
        return ScoreSummary(
            engine=self._engine,
            query_ids=self._query_ids,
            lowest=best.lowest[:, :width].numpy(),
            lowest_rows=best.lowest_rows[:, :width].numpy(),
            highest=best.highest[:, :width].numpy(),
            highest_rows=best.highest_rows[:, :width].numpy(),
            clusters=self._clusters,
            cluster_sums=np.ascontiguousarray(self._sums.T.numpy()),
        )


class _Reads:
    """Reports reads of a block as progress."""

    def __init__(self, progress: Callable[[int], None] | None) -> None:
        self._progress = progress
        self._done = 0

    def reached(self, reads: int) -> None:
        done = reads // 2
        if self._progress is not None and done > self._done:
            self._progress(done - self._done)
        self._done = done


def score_summaries(
    store: GradientStore,
    queries: QueryGradients,
    engine: str,
    settings: EngineSettings,
    k: int,
    assignment: Sequence[str] = (),
    *,
    normalize_query: bool = False,
    progress: Callable[[int], None] | None = None,
) -> ScoreSummary:
    """Score every example of an index on every query, and keep a summary of the scores.

    The scores are those of `score_index` without Gram matrices: blocks are summed in the same order. Memory holds
    the queries twice, as given and transformed, and the scores of one chunk.

    Args:
        store: an open index of n examples.
        queries: m query gradients over the same blocks, one at least.
        engine: name from the registry.
        settings: damping, learning rate and threads.
        k: rows to keep at each end of a query's ranking.
        assignment: cluster id of each of the n examples; empty for no sums.
        normalize_query: scale each query to unit norm, for curvature-free engines only.
        progress: called with the number of blocks done since the last call, two reads of a block being one.

    Raises:
        UnknownNameError: no such engine.
        GradientError: the queries are over other blocks, or a score is not finite.
        ValueError: k or m is below 1, or the assignment is not of n examples.
    """
    entry = ENGINES[engine]
    fold = _Fold(engine, queries.ids, store.n, k, assignment)
    scale = unit_norm_scale(queries) if normalize_query and entry.curvature_free else None
    reads = _Reads(progress)
    blocks_done = count(1)
    transformed = transform_queries(
        store, queries, engine, settings, lambda _: reads.reached(next(blocks_done))
    )
    for rows, blocks in store.chunks():
        scores = torch.zeros(len(rows), len(queries.ids), dtype=torch.float64)
        for query, gradients in zip(transformed, blocks, strict=True):
            scores += query.scores(torch.from_numpy(gradients), settings.threads)
        fold.add(scores if scale is None else scores * scale)
        reads.reached(len(transformed) + len(transformed) * rows.stop // store.n)
    return fold.summary()


def summarise_scores(scores: Scores, k: int, assignment: Sequence[str] = ()) -> ScoreSummary:
    """Return the summary of scores that are at hand; see `score_summaries` for k and the assignment.

    Raises:
        GradientError: a score is not finite.
        ValueError: k or the number of queries is below 1, or the assignment is not of n examples.
    """
    fold = _Fold(scores.engine, scores.query_ids, scores.values.shape[1], k, assignment)
    fold.add(torch.from_numpy(scores.values.T))
    return fold.summary()


def join_summaries(parts: Sequence[ScoreSummary]) -> ScoreSummary:
    """Return one summary of the queries of several, which are over the same examples with the same k.

    Raises:
        ValueError: there is none, or they differ in engine, clusters or k.
    """
    if len({(part.engine, part.clusters, part.lowest.shape[1]) for part in parts}) != 1:
        raise ValueError("summaries to join must share engine, clusters and k")
    return ScoreSummary(
        engine=parts[0].engine,
        query_ids=tuple(name for part in parts for name in part.query_ids),
        lowest=np.concatenate([part.lowest for part in parts]),
        lowest_rows=np.concatenate([part.lowest_rows for part in parts]),
        highest=np.concatenate([part.highest for part in parts]),
        highest_rows=np.concatenate([part.highest_rows for part in parts]),
        clusters=parts[0].clusters,
        cluster_sums=np.concatenate([part.cluster_sums for part in parts]),
    )
