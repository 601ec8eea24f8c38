"""Which rows a report accuses: those that its summary says to drop."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gradian.checks.attribution import culprit
from gradian.errors import NothingAccusedError
from gradian.report.build import cluster_facts
from gradian.report.model import Report

# Each of these says why the verdict names no cluster.
_REFUSALS = ("attribution.no_capability_target", "attribution.gate_failed", "attribution.flat_influence")


@dataclass(frozen=True)
class Accused:
    """The cluster that stands out as harmful.

    Attributes:
        cluster: its id.
        label: what it is about.
        rows: 0-based rows of the dataset, in order.
        ids: their examples' ids.
        n: rows of the whole dataset.
    """

    cluster: str
    label: str
    rows: tuple[int, ...]
    ids: tuple[str, ...]
    n: int


def accused_rows(report: Report) -> Accused:
    """Return the rows of the cluster that the verdict accuses.

    The same rule on the same scores as the report's own summary, so that the two never differ.

    Raises:
        NothingAccusedError: the report does not diagnose, or no cluster stands out.
    """
    accused = _culprit(report)
    if accused is None:
        raise _refusal(report)
    members = [example for example in report.examples if example.cluster == accused[0]]
    return Accused(
        cluster=accused[0],
        label=accused[1],
        rows=tuple(example.row for example in members),
        ids=tuple(example.id for example in members),
        n=len(report.examples),
    )


def _culprit(report: Report) -> tuple[str, str] | None:
    if not report.diagnosed:
        return None
    examples = report.examples
    relative = report.engines.ranked_by == "relative" and any(e.relative_score is not None for e in examples)
    # A score that is not finite is null in a report, and counts for nothing.
    ranking = np.array([e.relative_score if relative else e.score for e in examples], dtype=np.float64)
    facts = culprit(cluster_facts(report.clusters, [e.cluster for e in examples], ranking))
    return (facts.id, facts.label) if facts else None


def _refusal(report: Report) -> NothingAccusedError:
    reason = next((finding for name in _REFUSALS for finding in report.findings if finding.id == name), None)
    return NothingAccusedError(
        "the verdict accuses no rows, so there are none to drop",
        found=reason.title if reason else "no cluster that stands out as harmful",
        fix=reason.fix
        if reason
        else "read the most harmful rows one by one; with clusters (`clustering.method`) a group of them can stand out",
    )
