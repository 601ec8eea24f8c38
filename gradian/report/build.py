"""Puts the parts of a run together into one report."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gradian import __version__
from gradian.checks.attribution import (
    THRESHOLDS,
    CapabilityFacts,
    ClusterFacts,
    MagnitudeFacts,
    VerdictFacts,
    culprit,
    is_diagnosed,
    verdict_findings,
)
from gradian.checks.defect_overlap import overlap_findings, overlaps
from gradian.report.escape import quoted, visible
from gradian.report.model import (
    Capability,
    Cluster,
    Engines,
    Excerpt,
    HarmfulExample,
    Item,
    Report,
    ReportedFinding,
    ScoredExample,
    Skipped,
)
from gradian.report.summary import summary_lines
from gradian.types import Example, Finding, FloatArray, ScoreSummary

if TYPE_CHECKING:
    from gradian.clustering.summary import ClusterSummary
    from gradian.evaluation.capability import CapabilityResult

TOP_EXAMPLES = 20
"""Rows that the report shows with an excerpt."""
TOP_PER_ITEM = 3
"""Most harmful rows named for an eval item."""
TOP_COMPARED = 5
"""Most harmful rows that are compared with what the audit found."""


def build_report(
    *,
    examples: Sequence[Example],
    assignment: Sequence[str],
    clusters: Sequence[ClusterSummary],
    scores: FloatArray,
    relative: FloatArray | None,
    capability: CapabilityResult | None,
    query_signal: str,
    engines: Engines,
    item_scores: ScoreSummary | None = None,
    norms: FloatArray | None = None,
    findings: Sequence[Finding] = (),
    provenance: Mapping[str, Any] | None = None,
    skipped: Sequence[Skipped] = (),
    clustered: bool = True,
    require_significant: bool = True,
    ci_level: float = 0.95,
) -> Report:
    """Return the report of one attribution, with the findings on its verdict and its summary.

    Args:
        examples: the n training rows in dataset order.
        assignment: [n] cluster id of each row.
        clusters: most harmful first.
        scores: float64 [n], the primary engine's.
        relative: float64 [n], each score divided by its row's gradient norm; None when not computed.
        capability: None without an eval set.
        query_signal: what the query gradient was in the end: `contrastive` or `target`.
        item_scores: a query per eval item, with at least `TOP_PER_ITEM` of its lowest scores; `query_ids` are
            item ids. Items without one are allowed.
        norms: float64 [n] gradient norms, which `relative` was divided by; None when not known.
        findings: those of data, model and audit; the findings on the verdict are added here.
        provenance: JSON data, paths and numpy values.
        clustered: False when clustering was switched off, so that one cluster means nothing.
        require_significant: whether the gate is on.
        ci_level: confidence level of the capability's interval.
    """
    ranking, other = scores, relative
    if engines.ranked_by == "relative" and relative is not None:
        ranking, other = relative, scores
    facts = VerdictFacts(
        capability=_capability_facts(capability, ci_level) if capability else None,
        clusters=cluster_facts(clusters, assignment, ranking, other),
        clustered=clustered,
        ranked_by=engines.ranked_by,
        query_signal=query_signal,
        primary=engines.primary,
        cross_check=engines.cross_check,
        spearman=engines.spearman,
        relative_spearman=engines.relative_spearman,
        require_significant=require_significant,
        top_decile_share=top_decile_share(ranking),
        magnitude=magnitude_facts(examples, scores, norms) if norms is not None else None,
    )
    matches = _defect_matches(facts, findings, examples, assignment, ranking) if is_diagnosed(facts) else ()
    told = sorted([*verdict_findings(facts), *matches, *findings], key=lambda finding: finding.severity.rank)
    n = len(examples)
    return Report(
        gradian_version=__version__,
        diagnosed=is_diagnosed(facts),
        summary=summary_lines(facts, told),
        capability=_capability(capability, query_signal, ci_level) if capability else None,
        clusters=tuple(_cluster(cluster, examples) for cluster in clusters),
        findings=tuple(ReportedFinding.of(finding) for finding in told),
        engines=engines,
        items=_items(capability, item_scores, examples) if capability else (),
        top_examples=tuple(_excerpt(examples[row]) for row in most_harmful(ranking, TOP_EXAMPLES)),
        skipped=tuple(skipped),
        provenance=dict(provenance or {}),
        examples=tuple(
            ScoredExample(
                id=example.id,
                row=example.position,
                cluster=assignment[row],
                score=float(scores[row]),
                predicted_loss_delta_if_removed=float(scores[row]) / n,
                relative_score=None if relative is None else float(relative[row]),
            )
            for row, example in enumerate(examples)
        ),
    )


def most_harmful(scores: FloatArray, count: int) -> list[int]:
    """Return the rows of the `count` most negative scores, most negative first; ties in dataset order."""
    order = np.argsort(scores, kind="stable")[:count]
    return [int(row) for row in order if scores[row] < 0]


def top_decile_share(scores: FloatArray) -> float | None:
    """Return the share of all negative influence that the most harmful tenth of the rows holds; None without any."""
    harm = np.sort(np.clip(-scores, 0.0, None))[::-1]
    total = float(harm.sum())
    if not (total > 0 and math.isfinite(total)):
        return None
    return float(harm[: max(1, math.ceil(len(harm) / 10))].sum()) / total


def magnitude_facts(
    examples: Sequence[Example], scores: FloatArray, norms: FloatArray
) -> MagnitudeFacts | None:
    """Return what the rows with extreme gradients hold of the influence; None when no gradient is extreme.

    Args:
        examples: the n training rows.
        scores: float64 [n], raw.
        norms: float64 [n] gradient norms.
    """
    # Rows without a gradient (no target, or skipped) are no measure of what is usual.
    median = float(np.median(norms[norms > 0])) if (norms > 0).any() else 0.0
    extreme = norms > THRESHOLDS.extreme_norm * median
    influence = np.abs(scores)
    total = float(influence.sum())
    if not (extreme.any() and total > 0 and math.isfinite(total)):
        return None
    relative = np.divide(influence, norms, out=np.zeros_like(influence), where=norms > 0)
    count = int(extreme.sum())
    first_relative = np.argsort(-relative, kind="stable")[:count]
    rows = np.argsort(-norms, kind="stable")[:count].tolist()
    return MagnitudeFacts(
        ids=tuple(examples[row].id for row in rows),
        rows=len(examples),
        share=float(influence[extreme].sum()) / total,
        largest=float(norms.max()) / median,
        disagreeing=len(set(rows) - set(first_relative.tolist())),
    )


def _defect_matches(
    facts: VerdictFacts,
    findings: Sequence[Finding],
    examples: Sequence[Example],
    assignment: Sequence[str],
    ranking: FloatArray,
) -> tuple[Finding, ...]:
    harmful = {"most harmful rows": [examples[row].id for row in most_harmful(ranking, TOP_COMPARED)]}
    accused = culprit(facts.clusters, facts.thresholds) if facts.clustered else None
    if accused is not None:
        members = [row for row, name in enumerate(assignment) if name == accused.id]
        harmful[f"rows of cluster {quoted(accused.id)}"] = [examples[row].id for row in members]
    return overlap_findings(overlaps(findings, harmful, len(examples)))


def _capability_facts(result: CapabilityResult, ci_level: float) -> CapabilityFacts:
    return CapabilityFacts(
        name=result.name,
        metric=result.metric,
        base=result.base,
        tuned=result.tuned,
        delta=result.delta,
        ci_low=result.ci_low,
        ci_high=result.ci_high,
        ci_level=ci_level,
        n_items=result.n_items,
        n_flipped=result.n_flipped,
        verdict=result.verdict,
        proxy_used=result.proxy_used,
        regressed_margins=tuple(item.margin for item in result.items if item.regressed),
        already_failing=tuple(item.example_id for item in result.items if item.base_failed),
    )


def _capability(result: CapabilityResult, query_signal: str, ci_level: float) -> Capability:
    return Capability(
        name=result.name,
        metric=result.metric,
        base=result.base,
        tuned=result.tuned,
        delta=result.delta,
        ci_low=result.ci_low,
        ci_high=result.ci_high,
        n_items=result.n_items,
        verdict=result.verdict,
        ci_level=ci_level,
        proxy_used=result.proxy_used,
        n_flipped=result.n_flipped,
        n_already_failing=result.n_already_failing,
        mean_margin=result.mean_margin,
        query_signal=query_signal,
    )


def cluster_facts(
    clusters: Sequence[ClusterSummary | Cluster],
    assignment: Sequence[str],
    ranking: FloatArray,
    other: FloatArray | None = None,
) -> tuple[ClusterFacts, ...]:
    """Return each cluster's influence under the score that ranks.

    From the scores, not from the summaries, which always hold the raw one.

    Args:
        clusters: most harmful first.
        assignment: [n] cluster id of each row.
        ranking: float64 [n], the score that ranks, raw or relative.
        other: float64 [n], the other of the two; None when there is none.
    """
    members: dict[str, list[int]] = {cluster.id: [] for cluster in clusters}
    for row, name in enumerate(assignment):
        members.setdefault(name, []).append(row)
    total = _negative(ranking)
    return tuple(
        ClusterFacts(
            id=cluster.id,
            label=cluster.label,
            n=len(rows),
            sum=_sum(ranking[rows]),
            share_of_negative=_negative(ranking[rows]) / total if total else 0.0,
            mean=_sum(ranking[rows]) / max(1, len(rows)),
            other_mean=None if other is None else _sum(other[rows]) / max(1, len(rows)),
        )
        for cluster in clusters
        for rows in [members[cluster.id]]
    )


def _sum(scores: FloatArray) -> float:
    finite = scores[np.isfinite(scores)]
    try:
        return math.fsum(finite)
    except OverflowError:
        # Of finite numbers: the sum itself is one that nothing can hold.
        return math.copysign(math.inf, math.fsum(finite / len(finite)))


def _negative(scores: FloatArray) -> float:
    return _sum(scores[scores < 0])


def _cluster(cluster: ClusterSummary, examples: Sequence[Example]) -> Cluster:
    return Cluster(
        id=cluster.id,
        label=cluster.label,
        n=cluster.n,
        sum=cluster.sum,
        share_of_negative=cluster.share_of_negative,
        mean=cluster.mean,
        relative_mean=cluster.relative_mean,
        excerpts=tuple(_excerpt(examples[row]) for row in cluster.top_examples),
    )


def _excerpt(example: Example) -> Excerpt:
    return Excerpt(id=example.id, prompt=visible(example.prompt), target=visible(example.target))


def _items(
    result: CapabilityResult, item_scores: ScoreSummary | None, examples: Sequence[Example]
) -> tuple[Item, ...]:
    most_harmful_of = _most_harmful_of_each(item_scores, examples) if item_scores else {}
    return tuple(
        Item(
            id=item.example_id,
            prompt=item.prompt,
            expected=item.expected,
            base_answer=item.base_text,
            tuned_answer=item.tuned_text,
            base_score=item.base_score,
            tuned_score=item.tuned_score,
            regressed=item.regressed,
            margin=item.margin,
            most_harmful=most_harmful_of.get(item.example_id, ()),
        )
        for item in result.items
    )


def _most_harmful_of_each(
    scores: ScoreSummary, examples: Sequence[Example]
) -> dict[str, tuple[HarmfulExample, ...]]:
    return {
        name: tuple(
            HarmfulExample(id=examples[row].id, score=float(score))
            for row, score in zip(rows[:TOP_PER_ITEM], lowest[:TOP_PER_ITEM], strict=True)
            if score < 0
        )
        for name, rows, lowest in zip(scores.query_ids, scores.lowest_rows, scores.lowest, strict=True)
    }
