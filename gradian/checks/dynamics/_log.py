"""The trainer's log as series of numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from gradian.checks.audit import Audit
from gradian.checks.registry import CannotTell
from gradian.runs.artifact import LogRow, RunArtifact

Point = tuple[int, float]


def logged(audit: Audit) -> RunArtifact:
    """The run, for checks that read its log.

    Raises:
        CannotTell: it has no log.
    """
    run = audit.artifact
    if not run.has_log or not (run.train_log or run.eval_log):
        raise CannotTell("the run folder holds no training log (trainer_state.json)")
    return run


def finite(rows: Sequence[LogRow], value: Callable[[LogRow], float | None]) -> list[Point]:
    """Step and value of the rows that have one, without NaN and infinities, in order."""
    points = ((row.step, value(row)) for row in rows)
    return [(step, number) for step, number in points if number is not None and math.isfinite(number)]


def losses(audit: Audit, least: int = 1) -> list[Point]:
    """Finite training losses by step.

    Raises:
        CannotTell: there are fewer than `least`.
    """
    points = finite(logged(audit).train_log, lambda row: row.loss)
    if len(points) < least:
        raise CannotTell(f"the log has {len(points)} finite training losses; {least} are needed to judge it")
    return points


def grad_norms(audit: Audit, least: int = 1) -> list[Point]:
    """Finite gradient norms before clipping, by step.

    Raises:
        CannotTell: there are fewer than `least`.
    """
    points = finite(logged(audit).train_log, lambda row: row.grad_norm)
    if len(points) < least:
        raise CannotTell(f"the log has {len(points)} finite gradient norms; {least} are needed to judge them")
    return points
