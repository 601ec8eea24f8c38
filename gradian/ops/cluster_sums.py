"""Per-cluster sums of scores that come a few rows at a time."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gradian.ops._dispatch import Op, cpu_obstacle, native
from gradian.ops.stored_rows import thread_count

OP = Op[Any]("cluster_sums", stored=True)


@OP.implementation("reference")
def cluster_sums_reference(totals: Tensor, scores: Tensor, clusters: Tensor) -> None:
    """The definition in pure torch: one row after the other; see `cluster_sums`."""
    for row, cluster in zip(scores, clusters.tolist(), strict=True):
        totals[cluster] += row


@OP.implementation("native", cpu_obstacle)
def _native_cluster_sums(totals: Tensor, scores: Tensor, clusters: Tensor) -> None:
    native().add_cluster_sums(
        totals.numpy(), scores.contiguous().numpy(), clusters.contiguous().numpy(), thread_count(None)
    )


def cluster_sums(totals: Tensor, scores: Tensor, clusters: Tensor, impl: str | None = None) -> None:
    """Add each row of scores to the total of its cluster, in place.

    Rows are added one by one in the order given, so that totals over a whole index depend neither on how its
    rows were cut into calls nor on the number of threads.

    Args:
        totals: float64 [clusters, m], contiguous.
        scores: float64 [b, m].
        clusters: int64 [b], the row of `totals` that each row of `scores` belongs to.
        impl: implementation to use; None leaves the choice to `gradian.ops._dispatch`.

    Raises:
        ValueError: a shape or dtype does not fit, or a cluster's number is out of range.
        OpUnavailableError: `impl` cannot run here.
    """
    if totals.dim() != 2 or totals.dtype != torch.float64 or not totals.is_contiguous():
        raise ValueError(f"totals must be contiguous float64 [clusters, m], not {totals.dtype}")
    if scores.dim() != 2 or scores.shape[1] != totals.shape[1] or scores.dtype != torch.float64:
        raise ValueError(
            f"scores must be float64 [b, {totals.shape[1]}], not {scores.dtype} {tuple(scores.shape)}"
        )
    if clusters.shape != scores.shape[:1] or clusters.dtype != torch.int64:
        raise ValueError(
            f"clusters must be int64 [{len(scores)}], not {clusters.dtype} {tuple(clusters.shape)}"
        )
    if len(clusters) and not 0 <= int(clusters.min()) <= int(clusters.max()) < len(totals):
        raise ValueError(f"clusters must be below {len(totals)} and not negative")
    OP.choose(scores, impl)(totals, scores, clusters)
