"""Puts the rounds of a verification together: did the capability come back, and was it these rows?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gradian import __version__
from gradian.evaluation.bootstrap import Interval, paired_bootstrap
from gradian.report.accused import Accused
from gradian.report.escape import quoted
from gradian.report.model import Capability, Item, Report
from gradian.report.verification.model import (
    Change,
    Control,
    Dropped,
    Outcome,
    Round,
    Verification,
    VerifiedItem,
)

if TYPE_CHECKING:
    from gradian.config.schema import EvaluationConfig
    from gradian.evaluation.capability import CapabilityResult


@dataclass(frozen=True)
class Retraining:
    """A training run without some rows, measured.

    Attributes:
        run: its folder.
        rows: rows it was trained on.
        measured: the capability of its adapter.
        dropped: ids of the rows it left out.
    """

    run: str
    rows: int
    measured: CapabilityResult
    dropped: tuple[str, ...]


def build_verification(
    *,
    report: Report,
    accused: Accused,
    run: str,
    after: Retraining,
    control: Retraining | None,
    evaluation: EvaluationConfig,
    seed: int,
    notes: Sequence[str] = (),
    provenance: Mapping[str, Any] | None = None,
) -> Verification:
    """Return the verification of one report.

    Args:
        report: of the run with every row; it has a capability.
        accused: what was dropped.
        run: the run's folder.
        after: the retraining without the accused rows.
        control: the retraining without as many others, or None.
        evaluation: resamples and level of the intervals.
        seed: of the resampling.
        notes: what differs between the rounds beside the rows.
        provenance: JSON data.

    Raises:
        EvaluationError: the report and the retraining were not measured on the same items.
    """
    capability = report.capability
    if capability is None:
        raise ValueError("a report without a capability accuses nothing")
    before = _scores(report.items)

    def change(old: Sequence[float], new: Sequence[float]) -> Change:
        interval: Interval = paired_bootstrap(
            np.array(old), np.array(new), evaluation.n_bootstrap, evaluation.ci_level, seed
        )
        return Change(delta=interval.delta, ci_low=interval.low, ci_high=interval.high)

    again = _tuned(after.measured)
    gain = change(before, again)
    first = _first_round(capability, run, accused.n)
    second = _round(after)
    outcome = outcome_of(gain, second)
    compared = (
        Control(
            round=_round(control),
            ids=control.dropped,
            gain=change(before, _tuned(control.measured)),
            lead=change(_tuned(control.measured), again),
        )
        if control
        else None
    )
    items = tuple(_item(old, new) for old, new in zip(report.items, after.measured.items, strict=True))
    dropped = Dropped(
        cluster=accused.cluster, label=accused.label, n=len(accused.rows), of=accused.n, ids=accused.ids
    )
    return Verification(
        gradian_version=__version__,
        outcome=outcome,
        summary=summary_lines(outcome, capability, first, second, gain, dropped, items, compared, evaluation),
        capability=capability.name,
        metric=capability.metric,
        ci_level=evaluation.ci_level,
        before=first,
        after=second,
        gain=gain,
        dropped=dropped,
        control=compared,
        items=items,
        notes=tuple(notes),
        provenance=dict(provenance or {}),
    )


def outcome_of(gain: Change, after: Round) -> Outcome:
    """Return whether the capability came back: only an interval that excludes zero says that anything did."""
    if gain.ci_low is None or not gain.ci_low > 0:
        return "not_recovered"
    return "partly_recovered" if after.verdict == "regressed" else "recovered"


def summary_lines(
    outcome: Outcome,
    capability: Capability,
    before: Round,
    after: Round,
    gain: Change,
    dropped: Dropped,
    items: Sequence[VerifiedItem],
    control: Control | None,
    evaluation: EvaluationConfig,
) -> tuple[str, ...]:
    """Return what a reader is told first: the finding, the figures, the control, what to do."""
    name = quoted(capability.name)
    rows = f"{_count(dropped.n, 'row')} of cluster {quoted(dropped.cluster)}"
    step = f"{_figure(before.tuned)} to {_figure(after.tuned)} ({_change(gain, evaluation.ci_level)})"
    finding = {
        "recovered": f"{name} came back without the {rows}: {step}.",
        "partly_recovered": f"{name} came back in part without the {rows}: {step}.",
        "not_recovered": f"{name} did not come back without the {rows}: {step}.",
    }[outcome]
    lost = sum(item.lost for item in items)
    back = sum(item.came_back for item in items)
    lines = [
        finding,
        f"Against the base model's {_figure(after.base)}: {_figure(before.delta, '+')} before,"
        f" {_figure(after.delta, '+')} after; {back} of the {_count(lost, 'lost item')} came back.",
    ]
    if control is not None:
        lines.append(_control_line(control, outcome, evaluation.ci_level))
    return (*lines, f"Next: {_next_step(outcome, control)}")


def _control_line(control: Control, outcome: Outcome, level: float) -> str:
    head = (
        f"Control: without {_count(len(control.ids), 'other row')}, drawn at random, the score is"
        f" {_figure(control.round.tuned)} ({_change(control.gain, level)})"
    )
    if outcome == "not_recovered":
        return f"{head}."
    if control.lead.ci_low is not None and control.lead.ci_low > 0:
        return f"{head}: it was these rows, and not merely fewer of them."
    return f"{head}: the accused rows made no difference beyond noise that other rows did not make."


def _next_step(outcome: Outcome, control: Control | None) -> str:
    if outcome == "not_recovered":
        return (
            "read the accused rows before you drop them: the ranking may be wrong, the cause may lie in other rows or in"
            " the settings (`gradian diagnose`), or the eval set may be too small to show it."
        )
    unlike_control = control is None or (control.lead.ci_low is not None and control.lead.ci_low > 0)
    if not unlike_control:
        return (
            "measure on more items: the control came back as far as the retraining without the accused rows."
        )
    more = "" if control else " `--control` shows what dropping as many random rows does."
    if outcome == "partly_recovered":
        return f"attribute the new run: what is left of the regression has another cause.{more}"
    return f"train on the rows that stay. This is one retraining under one seed.{more}"


def _first_round(capability: Capability, run: str, rows: int) -> Round:
    return Round(
        run=run,
        rows=rows,
        base=capability.base,
        tuned=capability.tuned,
        delta=capability.delta,
        ci_low=capability.ci_low,
        ci_high=capability.ci_high,
        verdict=capability.verdict,
    )


def _round(retraining: Retraining) -> Round:
    measured = retraining.measured
    return Round(
        run=retraining.run,
        rows=retraining.rows,
        base=measured.base,
        tuned=measured.tuned,
        delta=measured.delta,
        ci_low=measured.ci_low,
        ci_high=measured.ci_high,
        verdict=measured.verdict,
    )


def _scores(items: Sequence[Item]) -> list[float]:
    # Null where a score was not finite, which the bootstrap refuses by the item's number.
    return [float("nan") if item.tuned_score is None else item.tuned_score for item in items]


def _tuned(measured: CapabilityResult) -> list[float]:
    return [item.tuned_score for item in measured.items]


def _item(old: Item, new: Any) -> VerifiedItem:
    return VerifiedItem(
        id=old.id,
        prompt=old.prompt,
        expected=old.expected,
        base_answer=new.base_text,
        before_answer=old.tuned_answer,
        after_answer=new.tuned_text,
        base_score=new.base_score,
        before_score=old.tuned_score,
        after_score=new.tuned_score,
        lost=old.regressed,
        came_back=old.regressed and new.tuned_score >= new.base_score,
    )


def _change(change: Change, level: float) -> str:
    return (
        f"{_figure(change.delta, '+')}, {level:.0%} CI"
        f" [{_figure(change.ci_low, '+')}, {_figure(change.ci_high, '+')}]"
    )


def _figure(value: float | None, sign: str = "") -> str:
    return "undefined" if value is None else format(value, f"{sign}.3f")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
