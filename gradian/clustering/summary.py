"""What each cluster did to the capability."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum

import numpy as np

from gradian.clustering.cluster import Clustering
from gradian.config.schema import ClusteringConfig
from gradian.types import Example, FloatArray


@dataclass(frozen=True)
class ClusterSummary:
    """One cluster's influence on the queried behaviour.

    Attributes:
        id: the cluster's id.
        label: what it is about, never empty.
        n: number of examples.
        sum: sum of its scores.
        mean: `sum / n`.
        share_of_negative: the sum of its negative scores over the sum of all negative scores, in [0, 1];
            0 where no score is negative.
        relative_mean: mean of the relative influence of its examples.
        top_examples: positions of its most harmful examples, worst first.
    """

    id: str
    label: str
    n: int
    sum: float
    mean: float
    share_of_negative: float
    relative_mean: float
    top_examples: tuple[int, ...]


def summarise(
    clustering: Clustering,
    examples: Sequence[Example],
    scores: FloatArray,
    relative: FloatArray,
    config: ClusteringConfig,
) -> tuple[ClusterSummary, ...]:
    """Return one summary a cluster, most harmful first: by signed sum, then by mean, then by id.

    The signed sum leads, not the share of negative influence: a large cluster that helps on balance can hold
    most of the negative scores.

    Args:
        clustering: cluster of each example.
        examples: the n training examples.
        scores: float64 [n], negative where the example degraded the behaviour.
        relative: float64 [n], score over the example's gradient norm.
        config: how many excerpts each cluster shows.

    Raises:
        ValueError: lengths differ.
    """
    n = len(examples)
    if not len(clustering.assignment) == scores.shape[0] == relative.shape[0] == n:
        raise ValueError(
            f"{n} examples, {len(clustering.assignment)} clusters, {scores.shape[0]} scores, "
            f"{relative.shape[0]} relative scores"
        )
    members: dict[str, list[int]] = {}
    for row, cluster in enumerate(clustering.assignment):
        members.setdefault(cluster, []).append(row)
    total = _negative(scores)
    summaries = []
    for cluster, rows in members.items():
        own = scores[rows]
        signed = fsum(own)
        worst = np.lexsort((np.array([examples[row].position for row in rows]), own))
        summaries.append(
            ClusterSummary(
                id=cluster,
                label=clustering.labels[cluster],
                n=len(rows),
                sum=signed,
                mean=signed / len(rows),
                # abs: 0 over a negative total is -0.0, which prints as such.
                share_of_negative=abs(_negative(own) / total) if total else 0.0,
                relative_mean=fsum(relative[rows]) / len(rows),
                top_examples=tuple(
                    examples[rows[k]].position for k in worst[: config.top_examples_per_cluster]
                ),
            )
        )
    return tuple(sorted(summaries, key=lambda summary: (summary.sum, summary.mean, summary.id)))


def _negative(scores: FloatArray) -> float:
    # Correctly rounded, so that the shares do not depend on the order of the rows.
    return fsum(scores[scores < 0])
