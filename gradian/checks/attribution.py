"""Findings on the verdict: what an attribution may claim, and what weakens the claim.

Every threshold sits in `Thresholds`. The figures in its comments are those of recorded runs, which
`tests/checks/test_attribution.py` replays.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gradian.runs.gradian_run import RunDataset
from gradian.types import Finding, Severity


@dataclass(frozen=True)
class Thresholds:
    """Where a figure starts to weaken a verdict.

    Attributes:
        agreement_low: Spearman between two engines below which their rankings contradict each other.
        agreement_moderate: below this they agree only moderately (recorded: 0.791 and 0.797).
        relative_agreement: Spearman between raw and relative scores below which they tell different stories.
        base_text: share of items that the base model passes, below which there was little to lose.
        base_loglik: the same for `loglik`, in nats (recorded: -5.05 and -2.08 are both weak).
        failing_share: share of items the base model fails too, from which that is more than a footnote.
        thin_nats: preference margin, in nats, below which nearly any fine-tune would tip the answer.
        thin_share: share of regressed items held that thinly, from which the verdict is only indicative
            (recorded: 2 of 8).
        culprit_contrast: negative influence per row inside a cluster over that outside it, from which the
            cluster stands out (recorded: 47 and 10 for planted rows).
        culprit_rows: share of all rows from which a cluster is the data set rather than a part of it.
        uneven_decile: share of the negative influence held by the most harmful tenth of the rows, from
            which rows differ even where clusters do not.
        extreme_norm: gradient norm, in medians, from which a row's gradient is extreme.
        magnitude_share: share of all absolute influence held by such rows, from which the raw ranking is one
            of their size.
        magnitude_rows: share of all rows above which they are not a few.
    """

    agreement_low: float = 0.5
    agreement_moderate: float = 0.9
    relative_agreement: float = 0.5
    base_text: float = 0.5
    base_loglik: float = -2.0
    failing_share: float = 0.25
    thin_nats: float = 1.0
    thin_share: float = 0.25
    culprit_contrast: float = 2.0
    culprit_rows: float = 0.9
    uneven_decile: float = 0.75
    extreme_norm: float = 10.0
    magnitude_share: float = 0.5
    magnitude_rows: float = 0.1


THRESHOLDS = Thresholds()


@dataclass(frozen=True)
class CapabilityFacts:
    """How the capability changed.

    Attributes:
        base, tuned, delta, ci_low, ci_high: in the metric's unit (share of items, or nats for `loglik`).
        verdict: `regressed`, `improved` or `not_significant`.
        regressed_margins: for each item that got worse, how strongly the base model preferred the wanted
            answer over what the tuned model says, in nats; None where there is nothing to compare.
        n_flipped: items that went from right to wrong.
        already_failing: ids of the eval items that the base model fails too.
    """

    name: str
    metric: str
    base: float
    tuned: float
    delta: float
    ci_low: float
    ci_high: float
    n_items: int
    verdict: str
    proxy_used: bool = False
    ci_level: float = 0.95
    n_flipped: int = 0
    regressed_margins: tuple[float | None, ...] = ()
    already_failing: tuple[str, ...] = ()


@dataclass(frozen=True)
class ClusterFacts:
    """One cluster's influence under the score that ranks.

    Attributes:
        sum, mean: signed.
        share_of_negative: share of the sum of all negative scores.
        other_mean: signed mean under the other of raw and relative score; None when there is none.
    """

    id: str
    label: str
    n: int
    sum: float
    share_of_negative: float
    mean: float
    other_mean: float | None = None


@dataclass(frozen=True)
class MagnitudeFacts:
    """The rows whose gradients are extreme, and how much of the influence they hold.

    Attributes:
        ids: their example ids, largest gradient first.
        rows: number of all rows.
        share: share of the sum of all absolute scores.
        largest: the largest gradient norm, in medians.
        disagreeing: how many of them are not among as many rows of the largest relative influence.
    """

    ids: tuple[str, ...]
    rows: int
    share: float
    largest: float
    disagreeing: int


@dataclass(frozen=True)
class VerdictFacts:
    """Everything that the findings on the verdict are made from.

    Attributes:
        capability: None when there is no eval set.
        clusters: most harmful first.
        clustered: False when no clustering was asked for, so that one cluster says nothing.
        ranked_by: `raw` or `relative`: the score behind `clusters`.
        query_signal: what the query gradient was in the end: `contrastive` or `target`.
        cross_check: name of the second engine, or None when none ran.
        spearman: rank agreement of the two engines; None or NaN when undefined.
        relative_spearman: rank agreement of raw and relative scores, likewise.
        require_significant: whether the gate is on.
        top_decile_share: share of all negative influence held by the most harmful tenth of the rows.
        magnitude: the rows with extreme gradients; None when there are none.
    """

    capability: CapabilityFacts | None
    clusters: tuple[ClusterFacts, ...] = ()
    clustered: bool = True
    ranked_by: str = "raw"
    query_signal: str = "contrastive"
    primary: str = "datainf"
    cross_check: str | None = None
    spearman: float | None = None
    relative_spearman: float | None = None
    require_significant: bool = True
    top_decile_share: float | None = None
    magnitude: MagnitudeFacts | None = None
    thresholds: Thresholds = field(default=THRESHOLDS)


def is_diagnosed(facts: VerdictFacts) -> bool:
    """Tell whether the scores may be called a diagnosis.

    There must be a capability and it must have regressed: the interval of the change excludes zero. With
    the gate switched off a fall is enough; an improvement is never diagnosed.
    """
    capability = facts.capability
    if capability is None:
        return False
    if capability.verdict == "regressed":
        return True
    return not facts.require_significant and capability.verdict == "not_significant" and capability.delta < 0


def harm_contrast(cluster: ClusterFacts, clusters: Sequence[ClusterFacts]) -> float:
    """Return the negative influence per row inside `cluster` over that per row outside it.

    Scale-free: multiplying all scores by a constant, or repeating every row, leaves it as it is. It is
    built from shares of the negative influence rather than from the clusters' net sums, because a net sum
    near zero outside would make the ratio explode or change sign. 1 means guilty in proportion to its size,
    inf that nothing outside is negative, and a cluster that holds every row has nothing to contrast
    with: 1 by definition.
    """
    outside_rows = sum(other.n for other in clusters) - cluster.n
    if outside_rows <= 0 or cluster.n <= 0:
        return 1.0
    share = cluster.share_of_negative
    if not share > 0:
        return 0.0
    inside, outside = share / cluster.n, max(0.0, 1.0 - share) / outside_rows
    return inside / outside if outside > 0 else math.inf


def culprit(clusters: Sequence[ClusterFacts], thresholds: Thresholds = THRESHOLDS) -> ClusterFacts | None:
    """Return the cluster that stands out as harmful, or None when none does.

    It is net harmful, it is a part of the data set rather than nearly all of it, and its rows carry at least
    `culprit_contrast` times the negative influence of the rows outside. Of several the one with the
    largest share of the negative influence is meant.
    """
    rows = sum(cluster.n for cluster in clusters)
    standing_out = [
        cluster
        for cluster in clusters
        if cluster.sum < 0
        and cluster.n < thresholds.culprit_rows * rows
        and harm_contrast(cluster, clusters) >= thresholds.culprit_contrast
    ]
    return max(standing_out, key=lambda cluster: cluster.share_of_negative, default=None)


def is_flat(clusters: Sequence[ClusterFacts], thresholds: Thresholds = THRESHOLDS) -> bool:
    """Tell whether some cluster is net harmful and yet none stands out: every one about equally guilty.

    A fault in the data is lumpy: recorded planted rows carried 47 and 10 times the negative influence
    of a row outside. A fault in the set-up (rate, epochs, mask) harms through every row alike, which shows as
    one cluster with everything or as contrasts near 1.
    """
    return any(cluster.sum < 0 for cluster in clusters) and culprit(clusters, thresholds) is None


def dataset_finding(trained: RunDataset, dataset: str, n: int) -> Finding | None:
    """Return a finding when the run was trained on other rows than the ones being scored.

    Args:
        trained: what the run's record says it was trained on.
        dataset: `gradian.data.ids.dataset_hash` of the rows being scored.
        n: their number.
    """
    if trained.hash == dataset:
        return None
    return Finding(
        id="attribution.dataset_mismatch",
        severity=Severity.CRITICAL,
        title=f"The run was trained on other rows than the {n} being scored",
        evidence=f"Its record names {trained.path} with {trained.n} rows, and content or order differ. Scores of rows that"
        " the adapter never saw explain nothing about it.",
        fix=f"Pass the file that the run was trained on: `--dataset {trained.path}`.",
        figures={"trained_rows": trained.n, "scored_rows": n},
    )


def truncation_finding(
    trained: int | None, indexed: int, lengths: Mapping[str, int], dropped: bool
) -> Finding | None:
    """Return a finding when rows were cut elsewhere in training than in the index.

    Args:
        trained: where training cut rows, in tokens; None when the run does not say.
        indexed: where the index cuts them, `grads.max_seq_length`.
        lengths: tokens of each row before any cut, by example id.
        dropped: whether training left longer rows out instead of cutting them.
    """
    if trained is None or (trained == indexed and not dropped):
        return None
    border = trained if dropped else min(trained, indexed)
    ids = tuple(row for row, length in lengths.items() if length > border)
    if not ids:
        return None
    did = "left longer rows out" if dropped else "cut rows there"
    return Finding(
        id="attribution.truncation_mismatch",
        severity=Severity.MEDIUM,
        title=f"{len(ids)} of {len(lengths)} rows are scored on other tokens than they were trained on"
        f" (training {trained}, index {indexed})",
        evidence=f"Training had a limit of {trained} tokens and {did}; the index cuts rows at {indexed}. The gradient of"
        " such a row is not the one that training followed.",
        fix="Take the rows out of the dataset that is scored."
        if dropped
        else f"Set grads.max_seq_length to {trained}.",
        example_ids=ids,
        figures={"trained": trained, "indexed": indexed, "rows": len(ids), "dropped": dropped},
    )


def verdict_findings(facts: VerdictFacts) -> tuple[Finding, ...]:
    """Return the findings on the verdict, most severe first, in a fixed order within a severity."""
    made = (
        _no_capability_target(facts),
        _gate_failed(facts),
        _flat_influence(facts),
        _target_query(facts),
        _base_model_weak(facts),
        _proxy_metric(facts),
        _no_item_regressed(facts),
        _thin_margin(facts),
        _already_failing(facts),
        _low_engine_agreement(facts),
        _relative_disagrees(facts),
        _dominated_by_magnitude(facts),
    )
    return tuple(sorted((finding for finding in made if finding), key=lambda finding: finding.severity.rank))


def _no_capability_target(facts: VerdictFacts) -> Finding | None:
    if facts.capability is not None:
        return None
    return Finding(
        id="attribution.no_capability_target",
        severity=Severity.HIGH,
        title="No eval set was given, so this is a smoke test and not a diagnosis",
        evidence="Without `--eval-dataset` the scores are about the first few training examples: they show that"
        " the pipeline runs, not which example hurt a capability.",
        fix="Pass `--eval-dataset` with items that describe the lost capability and the answers you wanted.",
    )


def _gate_failed(facts: VerdictFacts) -> Finding | None:
    capability = facts.capability
    if capability is None or capability.verdict == "regressed":
        return None
    interval = (
        f"{capability.ci_level:.0%} CI [{capability.ci_low:+.4f}, {capability.ci_high:+.4f}]"
        f" over {capability.n_items} items"
    )
    figures = {"delta": capability.delta, "ci_low": capability.ci_low, "ci_high": capability.ci_high}
    if capability.verdict == "improved":
        return Finding(
            id="attribution.gate_failed",
            severity=Severity.HIGH,
            title=f"The capability improved ({capability.delta:+.4f}): there is no regression to attribute",
            evidence=f"The change is {capability.delta:+.4f}, {interval}.",
            fix="If the model is plainly worse, the eval set or `evaluation.metric` does not measure what was lost:"
            " use `exact_match` or `contains` on items that the base model passes.",
            figures=figures,
        )
    off = "" if facts.require_significant else " The gate is off (`evaluation.require_significant: false`)."
    return Finding(
        id="attribution.gate_failed",
        severity=Severity.HIGH,
        title=f"The change of {capability.delta:+.4f} cannot be told from noise",
        evidence=f"Its interval includes zero: {interval}.{off} A ranking over such a change ranks nothing.",
        fix="Add eval items, since a wide interval is mostly one of resolution, and check that"
        " `evaluation.metric` suits the capability."
        + (
            " Leave `evaluation.require_significant` on."
            if facts.require_significant
            else " Turn `evaluation.require_significant` back on."
        ),
        figures=figures,
    )


def _flat_influence(facts: VerdictFacts) -> Finding | None:
    clusters = facts.clusters
    if not facts.clustered or not is_diagnosed(facts) or not is_flat(clusters, facts.thresholds):
        return None
    rows = sum(cluster.n for cluster in clusters)
    largest = max(clusters, key=lambda cluster: cluster.n)
    contrast = max(harm_contrast(cluster, clusters) for cluster in clusters if cluster.sum < 0)
    if largest.n >= facts.thresholds.culprit_rows * rows:
        seen = (
            f"One cluster holds {largest.n} of the {rows} rows, at {largest.mean:+.4g} a row, and no smaller one"
            " stands out."
        )
    else:
        seen = (
            f"No cluster's rows carry {facts.thresholds.culprit_contrast:g} times the negative influence of the"
            f" rows outside it; the largest ratio is {contrast:.2g}."
        )
    decile = facts.top_decile_share
    uneven = decile is not None and decile >= facts.thresholds.uneven_decile
    return Finding(
        id="attribution.flat_influence",
        severity=Severity.HIGH,
        title="Every cluster is about equally guilty: read this as a fault of the set-up, not of some rows",
        evidence=f"{seen} A data fault is lumpy; a fault of the set-up harms through every row alike."
        + (
            f" Single rows do differ, though: the most harmful tenth holds {decile:.0%} of the negative"
            " influence, so this clustering may be hiding them."
            if uneven
            else ""
        ),
        fix="Delete nothing on this ranking. Check learning rate, epochs, `max_seq_length` and loss mask first"
        + (", then cluster more finely (`clustering.method: kmeans`)." if uneven else "."),
        figures={
            "largest_cluster_share": largest.n / rows,
            "max_contrast": contrast if math.isfinite(contrast) else None,
            "top_decile_share": decile,
        },
    )


def _target_query(facts: VerdictFacts) -> Finding | None:
    if facts.capability is None or facts.query_signal == "contrastive":
        return None
    if facts.capability.metric != "loglik" and not facts.capability.regressed_margins:
        # There was no wrong answer to subtract; `attribution.no_item_regressed` says what that means.
        return None
    return Finding(
        id="attribution.target_query",
        severity=Severity.HIGH,
        title="The query is the expected answer alone, which can turn the sign of the verdict round",
        evidence="Where the model now says something else, the gradient of the wanted answer is mostly one of"
        " answer format, and the very rows that taught the wrong answer can score as helpful."
        + (
            " `loglik` leaves no generated answer to subtract."
            if facts.capability.metric == "loglik"
            else " A generated answer was at hand and was not used."
        ),
        fix="Set `evaluation.query_signal: contrastive`, with `exact_match`, `contains` or `not_contains` as"
        " `evaluation.metric`.",
        figures={"query_signal": facts.query_signal, "metric": facts.capability.metric},
    )


def _base_model_weak(facts: VerdictFacts) -> Finding | None:
    capability = facts.capability
    if capability is None:
        return None
    loglik = capability.metric == "loglik"
    threshold = facts.thresholds.base_loglik if loglik else facts.thresholds.base_text
    if not capability.base < threshold:
        return None
    return Finding(
        id="attribution.base_model_weak",
        severity=Severity.HIGH,
        title=f"The base model scored only {capability.base:.2f} before training, so the data explains little",
        evidence=f"Below {threshold:g}{' nats' if loglik else ''} the capability was largely absent before the"
        " fine-tune: there was little to lose.",
        fix="Use items that the base model already passes, or a base model that has the capability.",
        figures={"base": capability.base, "threshold": threshold},
    )


def _proxy_metric(facts: VerdictFacts) -> Finding | None:
    capability = facts.capability
    if capability is None or not capability.proxy_used:
        return None
    return Finding(
        id="attribution.proxy_metric",
        severity=Severity.MEDIUM,
        title=f"`{capability.metric}` is a proxy: it follows the format of an answer more than its content",
        evidence="A fine-tune mostly teaches answer format, so likelihood can rise while the answers get worse.",
        fix="Use `exact_match` or `contains` where the capability has a discrete answer.",
        figures={"metric": capability.metric},
    )


def _no_item_regressed(facts: VerdictFacts) -> Finding | None:
    capability = facts.capability
    if capability is None or capability.regressed_margins:
        return None
    return Finding(
        id="attribution.no_item_regressed",
        severity=Severity.MEDIUM,
        title="No individual eval item regressed, so the query gradient averages the whole eval set",
        evidence=f"None of the {capability.n_items} items got worse: the scores measure against an average, not"
        " against a failure.",
        fix="Choose items that show the damage, and a metric that sees it.",
        figures={"n_items": capability.n_items},
    )


def _thin_margin(facts: VerdictFacts) -> Finding | None:
    if facts.capability is None:
        return None
    margins = [
        margin
        for margin in facts.capability.regressed_margins
        if margin is not None and math.isfinite(margin)
    ]
    thin = sum(margin < facts.thresholds.thin_nats for margin in margins)
    if not thin:
        return None
    mean = math.fsum(margins) / len(margins)
    return Finding(
        id="attribution.thin_margin",
        severity=Severity.MEDIUM if thin >= facts.thresholds.thin_share * len(margins) else Severity.LOW,
        title=f"The base model held the capability weakly on {thin} of the {len(margins)} regressed items"
        f" (mean margin {mean:+.2f} nats)",
        evidence=f"On those it preferred the wanted answer by less than {facts.thresholds.thin_nats:g} nat over what"
        " the tuned model says. Almost any fine-tune would have tipped them: the data may be the trigger rather"
        " than the cause.",
        fix="Take the attribution as indicative and confirm it by retraining without the accused rows.",
        figures={"n_thin": thin, "n_regressed": len(margins), "mean_margin": mean},
    )


def _already_failing(facts: VerdictFacts) -> Finding | None:
    capability = facts.capability
    if capability is None or not capability.already_failing:
        return None
    failing, items = len(capability.already_failing), capability.n_items
    return Finding(
        id="attribution.already_failing",
        severity=Severity.MEDIUM if failing >= facts.thresholds.failing_share * items else Severity.LOW,
        title=f"{failing} of the {items} eval items {'was' if failing == 1 else 'were'} already failing before"
        " the fine-tune",
        evidence="The base model gets them wrong too: no capability was lost there, so no training example"
        " explains them.",
        fix="Replace them by items that the base model passes.",
        figures={"n_already_failing": failing, "n_items": items, "items": list(capability.already_failing)},
    )


def _low_engine_agreement(facts: VerdictFacts) -> Finding | None:
    if facts.cross_check is None:
        return None
    pair = f"`{facts.primary}` and `{facts.cross_check}`"
    fix = "Trust only what both engines rank alike, and confirm it by retraining."
    agreement = facts.spearman
    if agreement is None or not math.isfinite(agreement):
        return Finding(
            id="attribution.low_engine_agreement",
            severity=Severity.MEDIUM,
            title=f"Agreement between {pair} could not be computed",
            evidence="At least one of the two rankings is constant.",
            fix=fix,
            figures={"spearman": None},
        )
    if agreement >= facts.thresholds.agreement_moderate:
        return None
    low = agreement < facts.thresholds.agreement_low
    return Finding(
        id="attribution.low_engine_agreement",
        severity=Severity.HIGH if low else Severity.MEDIUM,
        title=f"Engine agreement is {'low' if low else 'moderate'}: {pair} rank the rows with Spearman"
        f" {agreement:.3f}",
        evidence="Two engines that disagree mean that at least one approximation is not valid here.",
        fix=fix,
        figures={"spearman": agreement},
    )


def _relative_disagrees(facts: VerdictFacts) -> Finding | None:
    if facts.capability is None:
        return None
    agreement = facts.relative_spearman
    low = agreement is not None and agreement < facts.thresholds.relative_agreement
    top, other = culprit(facts.clusters, facts.thresholds), _other_culprit(facts)
    moved = top is not None and other is not None and top.id != other.id
    if not (low or moved):
        return None
    seen = []
    if low:
        seen.append(f"the rankings agree at Spearman {agreement:.3f}")
    if moved:
        seen.append("the most harmful cluster is another one")
    return Finding(
        id="attribution.relative_disagrees",
        severity=Severity.MEDIUM,
        title=f"Raw and relative influence tell different stories: {' and '.join(seen)}",
        evidence="Relative influence divides a score by the row's own gradient norm. When the two differ, a few"
        " rows with very large gradients may be drowning the rest of the raw ranking.",
        fix="Read both columns; `engine.relative` says which of them ranks.",
        figures={
            "relative_spearman": agreement,
            "ranked_by": facts.ranked_by,
            "cluster": top.id if top else None,
            "other_cluster": other.id if other else None,
        },
    )


def _dominated_by_magnitude(facts: VerdictFacts) -> Finding | None:
    magnitude, limits = facts.magnitude, facts.thresholds
    if facts.ranked_by != "raw" or magnitude is None:
        return None
    few = len(magnitude.ids) <= max(1.0, limits.magnitude_rows * magnitude.rows)
    if not few or magnitude.share < limits.magnitude_share:
        return None
    count = len(magnitude.ids)
    return Finding(
        id="attribution.dominated_by_magnitude",
        severity=Severity.MEDIUM,
        title=f"{count} of {magnitude.rows} rows hold {magnitude.share:.0%} of all influence by the size of their"
        " gradients",
        evidence=f"Their gradients are {limits.extreme_norm:g} and up to {magnitude.largest:.0f} times the median: on an"
        " adapter that has memorised or overtrained most rows, the few that it still gets wrong push hardest, whatever"
        f" they are about. By relative influence {magnitude.disagreeing} of them are not among the first {count}.",
        fix="Read the relative ranking (`engine.relative: true` ranks by it); look at these rows, and at epochs and"
        " learning rate.",
        example_ids=magnitude.ids,
        figures={
            "rows": count,
            "share": magnitude.share,
            "largest_norm_in_medians": magnitude.largest,
            "not_among_first_relative": magnitude.disagreeing,
        },
    )


def _other_culprit(facts: VerdictFacts) -> ClusterFacts | None:
    rows = sum(cluster.n for cluster in facts.clusters)
    harmful = [
        (cluster.other_mean * cluster.n, cluster)
        for cluster in facts.clusters
        if cluster.other_mean is not None
        and cluster.other_mean < 0
        and cluster.n < facts.thresholds.culprit_rows * rows
    ]
    return min(harmful, key=lambda pair: pair[0])[1] if harmful else None
