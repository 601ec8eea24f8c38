"""The few sentences that a report opens with, most important first."""

from __future__ import annotations

from collections.abc import Sequence

from gradian.checks.attribution import CapabilityFacts, ClusterFacts, VerdictFacts, culprit, is_diagnosed
from gradian.report.escape import quoted
from gradian.types import Finding, Severity

# These have a sentence of their own, or are the sentence that refuses.
_TOLD = ("attribution.no_capability_target", "attribution.gate_failed", "attribution.flat_influence")


def summary_lines(facts: VerdictFacts, findings: Sequence[Finding]) -> tuple[str, ...]:
    """Return the summary: what invalidates the run, the change, the cluster, the hedges, the next step.

    Without a regression beyond noise no cluster is named: the scores exist, the accusation does not. Where every
    row is about equally guilty, the setting that explains it comes before the change.
    """
    critical = [finding for finding in findings if finding.severity is Severity.CRITICAL]
    lines = [_critical(critical)] if critical else []
    cause = _setup_cause(findings)
    if cause and cause not in critical:
        lines.append(
            f"The set-up explains this better than any row: {cause.title.rstrip('.')} (`{cause.id}`), and every"
            " cluster is about equally guilty."
        )
    lines.append(_change(facts))
    if is_diagnosed(facts):
        lines.append(_cluster(facts, findings))
    lines += _hedges(findings)
    lines.append(f"Next: {_next_step(facts, findings, critical)}")
    return tuple(lines)


def _critical(critical: Sequence[Finding]) -> str:
    titles = "; ".join(finding.title.rstrip(".") for finding in critical)
    if len(critical) == 1:
        return f"1 critical issue invalidates or dominates this run: {titles}. Fix it before interpreting anything else."
    return (
        f"{len(critical)} critical issues invalidate or dominate this run: {titles}."
        " Fix these before interpreting anything else."
    )


def _setup_cause(findings: Sequence[Finding]) -> Finding | None:
    """Return the most severe finding on settings or logs when the influence is flat."""
    if _by_id(findings, "attribution.flat_influence") is None:
        return None
    serious = (Severity.CRITICAL, Severity.HIGH, Severity.MEDIUM)
    causes = [
        finding
        for finding in findings
        if finding.id.startswith(("config.", "dynamics.")) and finding.severity in serious
    ]
    return min(causes, key=lambda finding: finding.severity.rank, default=None)


def _change(facts: VerdictFacts) -> str:
    capability = facts.capability
    if capability is None:
        return (
            "Not diagnosed: no eval set was given. The scores are about the first few training examples:"
            " a smoke test, in which nothing is accused."
        )
    name = quoted(capability.name)
    figures = (
        f"{capability.base:.3f} to {capability.tuned:.3f} ({capability.delta:+.3f}, {capability.ci_level:.0%} CI"
        f" [{capability.ci_low:+.3f}, {capability.ci_high:+.3f}]) over {_count(capability.n_items, 'item')}"
    )
    if capability.verdict == "regressed":
        return f"{name} regressed {figures}. {_flips(capability)}"
    if capability.verdict == "improved":
        return f"Not diagnosed: {name} improved {figures}, so there is no regression to explain. Scores are shown, nothing is accused."
    if is_diagnosed(facts):
        return (
            f"{name} fell {figures}. The interval includes zero and the gate is switched off:"
            " what follows may be a ranking of noise."
        )
    return f"Not diagnosed: {name} went {figures}, and the interval includes zero. Scores are shown, nothing is accused."


def _flips(capability: CapabilityFacts) -> str:
    return f"{_count(capability.n_flipped, 'item')} flipped from right to wrong."


def _cluster(facts: VerdictFacts, findings: Sequence[Finding]) -> str:
    flat = _by_id(findings, "attribution.flat_influence")
    if flat:
        return f"{flat.title}."
    if not facts.clustered:
        return "The rows were not clustered: read the most harmful rows one by one."
    accused = culprit(facts.clusters, facts.thresholds)
    if accused is None:
        return "No cluster is net harmful: taken together, the training rows supported the capability."
    kind = " relative" if facts.ranked_by == "relative" else ""
    return (
        f"Cluster {_cluster_name(accused)} holds {accused.share_of_negative:.1%} of the negative{kind} influence in"
        f" {accused.n} of {sum(cluster.n for cluster in facts.clusters)} rows: {_rate(accused, facts.clusters)}."
    )


def _rate(accused: ClusterFacts, clusters: Sequence[ClusterFacts]) -> str:
    others = [cluster for cluster in clusters if cluster.id != accused.id]
    rest = sum(cluster.sum for cluster in others) / sum(cluster.n for cluster in others)
    compared = f"{accused.mean:+.4g} a row against {rest:+.4g} for the rest"
    if rest >= 0:
        return f"{compared}, which is not harmful on the whole"
    return f"{compared}, {_times(accused.mean / rest)} as harmful"


def _times(ratio: float) -> str:
    return f"about {ratio:.0f} times" if ratio >= 10 else f"{ratio:.1f} times"


def _hedges(findings: Sequence[Finding]) -> list[str]:
    hedges = [
        f"{finding.title.rstrip('.')}."
        for finding in findings
        if finding.id.startswith("attribution.")
        and finding.id not in _TOLD
        and finding.severity is not Severity.CRITICAL
    ]
    other = [
        finding.id
        for finding in findings
        if finding.severity is Severity.HIGH and not finding.id.startswith("attribution.")
    ]
    if other:
        named = ", ".join(f"`{name}`" for name in dict.fromkeys(other))
        hedges.append(f"The audit also has findings of high severity: {named}.")
    return hedges


def _next_step(facts: VerdictFacts, findings: Sequence[Finding], critical: Sequence[Finding]) -> str:
    fixable = next((finding for finding in critical if finding.fix), None)
    if fixable:
        return fixable.fix
    if not is_diagnosed(facts):
        refusal = _by_id(findings, "attribution.no_capability_target") or _by_id(
            findings, "attribution.gate_failed"
        )
        return refusal.fix if refusal else "measure the capability on more items."
    flat = _by_id(findings, "attribution.flat_influence")
    if flat:
        cause = _setup_cause(findings)
        return f"{cause.fix.rstrip('.')}. {flat.fix}" if cause and cause.fix else flat.fix
    accused = culprit(facts.clusters, facts.thresholds) if facts.clustered else None
    if accused is None:
        return "Read the most harmful rows, drop those that are wrong, retrain from the same base model and measure again."
    return (
        f"Drop the {accused.n} rows of cluster {quoted(accused.id)}, retrain from the same base model and see"
        " whether the capability comes back. Until then the ranking is a hypothesis."
    )


def _cluster_name(cluster: ClusterFacts) -> str:
    """Return a cluster's id, with its label where that says more."""
    name = quoted(cluster.id)
    return name if cluster.label in ("", cluster.id) else f"{name} ({quoted(cluster.label)})"


def _by_id(findings: Sequence[Finding], wanted: str) -> Finding | None:
    return next((finding for finding in findings if finding.id == wanted), None)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
