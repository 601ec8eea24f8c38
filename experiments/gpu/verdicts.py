"""What the experiments may claim: pure rules from a report to a verdict.

INCONCLUSIVE is no failure of attribution: the experiment did not create the condition that it meant to test.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np

from gradian.errors import NothingAccusedError
from gradian.query.scorer import rank_correlation
from gradian.report.accused import accused_rows
from gradian.report.model import Cluster, Report
from gradian.report.verification.model import Verification
from gradian.types import FloatArray

UPTAKE = 0.15
"""Share of eval items answered with what was planted, below which the poison was not learned."""


class Status(str, Enum):
    """How an experiment came out."""

    PASS = "PASS"
    FAIL = "FAIL"
    INCONCLUSIVE = "INCONCLUSIVE"
    SKIPPED = "SKIPPED"


@dataclass(frozen=True)
class Verdict:
    """How an experiment came out, and why.

    Attributes:
        status: what may be claimed.
        reasons: sentences.
        figures: the numbers behind them; JSON values.
    """

    status: Status
    reasons: tuple[str, ...]
    figures: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the verdict as JSON values."""
        return {"status": self.status.value, "reasons": list(self.reasons), **self.figures}


def judge_poison(report: Report, planted: str, uptake: float) -> Verdict:
    """Experiment A: a pass needs a regression beyond noise and the planted cluster on top of the harm.

    Args:
        report: of the poisoned run.
        planted: cluster id of the planted rows.
        uptake: share of eval items answered with what was planted.
    """
    regressed, found = _regressed(report), _on_top(report) == planted
    accused = accused_cluster(report)
    figures = {**_capability(report), "uptake": uptake, "found": found, "accused": accused}
    if not regressed:
        reasons = ["No regression beyond noise: there is nothing to attribute."]
        if uptake < UPTAKE:
            reasons.append(_not_learned(uptake))
        return Verdict(Status.INCONCLUSIVE, tuple(reasons), figures)
    if found:
        return Verdict(Status.PASS, ("The planted cluster ranks first in negative influence.",), figures)
    if uptake < UPTAKE:
        return Verdict(Status.INCONCLUSIVE, (_not_learned(uptake),), figures)
    return Verdict(
        Status.FAIL,
        (f"The poison was learned, and {_on_top(report)} ranks before the planted cluster.",),
        figures,
    )


def judge_scenario(report: Report, must_fire: Sequence[str], kinds: Sequence[str] | None = None) -> Verdict:
    """Experiment B, one fault: the checks must name it and no rows may be accused.

    Whether rows are spared shows only where something regressed: otherwise nothing could have been blamed on them.

    Args:
        report: of the broken run.
        must_fire: check ids.
        kinds: kind of task of each training row. Which of them would be accused, had the rows been grouped by it, is
            a figure of the verdict and no part of its rule.
    """
    fired = sorted({finding.id for finding in report.findings if not finding.id.startswith("attribution.")})
    missing = [name for name in must_fire if name not in fired]
    accused = accused_cluster(report)
    figures = {
        **_capability(report),
        "must_fire": list(must_fire),
        "fired": fired,
        "missing": missing,
        "accused": accused,
        "leads": report.summary[0],
    }
    if kinds is not None:
        figures["accused_by_kind"] = accused_cluster(grouped(report, kinds))
    reasons = [f"{name} did not fire." for name in missing]
    if accused is not None:
        reasons.append(f"Good rows were blamed: cluster {accused}.")
    if reasons:
        return Verdict(Status.FAIL, tuple(reasons), figures)
    if not _regressed(report):
        return Verdict(
            Status.INCONCLUSIVE,
            ("The checks fired; nothing regressed, so that no rows were blamed proves little.",),
            figures,
        )
    return Verdict(Status.PASS, ("The checks fired and no rows were blamed.",), figures)


def judge_scenarios(verdicts: Mapping[str, Verdict]) -> Verdict:
    """Experiment B as a whole: passed when nothing failed and at least one fault did real damage."""
    statuses = [verdict.status for verdict in verdicts.values()]
    counted = ", ".join(f"{statuses.count(status)} {status.value}" for status in Status if status in statuses)
    figures = {"scenarios": {name: verdict.to_json() for name, verdict in verdicts.items()}}
    if Status.FAIL in statuses:
        status = Status.FAIL
    else:
        status = Status.PASS if Status.PASS in statuses else Status.INCONCLUSIVE
    return Verdict(status, (f"{counted}.",), figures)


def judge_recovery(verification: Verification, planted: Collection[str]) -> Verdict:
    """Experiment C: a pass needs a better second round; precision says at what price.

    Args:
        verification: of the poisoned run.
        planted: ids of the planted rows.
    """
    dropped = verification.dropped.ids
    right = sum(name in planted for name in dropped)
    first, second = verification.before, verification.after
    figures: dict[str, Any] = {
        "round1_delta": first.delta,
        "round2_delta": second.delta,
        "gain": verification.gain.delta,
        "gain_ci": [verification.gain.ci_low, verification.gain.ci_high],
        "outcome": verification.outcome,
        "removed": len(dropped),
        "removal_precision": right / len(dropped),
        "removal_recall": right / len(planted),
    }
    if verification.control:
        figures["control_delta"] = verification.control.round.delta
    better = first.delta is not None and second.delta is not None and second.delta > first.delta
    reasons = [f"The capability {verification.outcome.replace('_', ' ')}."]
    if better and right < len(dropped):
        reasons.append(f"{len(dropped) - right} of the {len(dropped)} dropped rows were innocent.")
    return Verdict(Status.PASS if better else Status.FAIL, tuple(reasons), figures)


def judge_parity(hf: Report, unsloth: Report) -> Verdict:
    """Experiment D: the same rows through both backends must lead to the same conclusion."""
    tops = {"hf": _on_top(hf), "unsloth": _on_top(unsloth)}
    regressed = {"hf": _regressed(hf), "unsloth": _regressed(unsloth)}
    figures = {
        "hf": {**_capability(hf), "top": tops["hf"], "accused": accused_cluster(hf)},
        "unsloth": {**_capability(unsloth), "top": tops["unsloth"], "accused": accused_cluster(unsloth)},
        "spearman": rank_correlation(_scores(hf), _scores(unsloth)),
    }
    if not any(regressed.values()):
        return Verdict(
            Status.INCONCLUSIVE, ("Neither run regressed: there is no conclusion to compare.",), figures
        )
    differing = [
        f"{name}: {first} under hf, {second} under unsloth."
        for name, first, second in (
            ("regressed", regressed["hf"], regressed["unsloth"]),
            ("cluster on top", tops["hf"], tops["unsloth"]),
            ("accused cluster", accused_cluster(hf), accused_cluster(unsloth)),
        )
        if first != second
    ]
    if differing:
        return Verdict(Status.FAIL, tuple(differing), figures)
    return Verdict(Status.PASS, ("Both backends lead to the same conclusion.",), figures)


def skipped(reason: str) -> Verdict:
    """Return the verdict of an experiment that cannot run here."""
    return Verdict(Status.SKIPPED, (reason,))


def accused_cluster(report: Report) -> str | None:
    """Return the cluster that the report accuses; None where it accuses none."""
    try:
        return accused_rows(report).cluster
    except NothingAccusedError:
        return None


def grouped(report: Report, kinds: Sequence[str]) -> Report:
    """Return the report with its rows in other clusters.

    Args:
        report: whose scores are kept.
        kinds: [n] the cluster of each row.
    """
    examples = tuple(
        example.model_copy(update={"cluster": kind})
        for example, kind in zip(report.examples, kinds, strict=True)
    )
    scores = _scores(report)
    clusters = tuple(
        Cluster(
            id=kind,
            label=kind,
            n=len(rows),
            sum=float(np.nansum(scores[rows])),
            share_of_negative=None,
            mean=float(np.nanmean(scores[rows])),
        )
        for kind in dict.fromkeys(kinds)
        for rows in [[row for row, other in enumerate(kinds) if other == kind]]
    )
    return report.model_copy(update={"examples": examples, "clusters": clusters})


def _on_top(report: Report) -> str | None:
    # Most harmful first; a cluster that helps on balance is on top of nothing.
    first = report.clusters[0] if report.clusters else None
    return first.id if first and first.sum is not None and first.sum < 0 else None


def _regressed(report: Report) -> bool:
    return report.capability is not None and report.capability.verdict == "regressed"


def _capability(report: Report) -> dict[str, Any]:
    capability = report.capability
    if capability is None:
        return {}
    return {
        "base": capability.base,
        "tuned": capability.tuned,
        "delta": capability.delta,
        "ci": [capability.ci_low, capability.ci_high],
        "gate": capability.verdict,
    }


def _scores(report: Report) -> FloatArray:
    return np.array([example.score for example in report.examples], dtype=np.float64)


def _not_learned(uptake: float) -> str:
    return (
        f"The poison was not learned: {uptake:.0%} of the items were answered with it, below {UPTAKE:.0%}. Raise"
        " --poison-fraction, --epochs or --learning-rate."
    )
