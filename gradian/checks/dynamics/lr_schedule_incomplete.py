"""Training stopped before the learning rate came down.

What it detects
    The schedule decays, but the last logged rate is above `schedule_floor` (20%) of the peak. Constant schedules
    and those that wait for a plateau are not judged; one with a floor of its own only where the run stopped
    before its planned end. A run that went to its end is not judged by a last row logged well before it.

Why it matters
    The decay is where a run settles. An adapter from the middle of the schedule is noisier, its losses are not
    near a minimum, and influence, which supposes one, ranks more noisily.

What to do
    Let the run go to its end, or set max_steps (or num_train_epochs) to where it should end, so that the
    schedule fits.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from gradian.checks.audit import Audit
from gradian.checks.dynamics._log import finite, logged
from gradian.checks.registry import CannotTell, Need, check
from gradian.checks.row_findings import excerpt
from gradian.types import Finding, Severity

_NEVER_DECAYS = re.compile(r"(?i)constant|plateau|inverse_sqrt|greedy")
_HAS_FLOOR = re.compile(r"(?i)min_lr|stable_decay|wsd|polynomial|rex|restart")
# Within this share of the end the schedule is at its end: linear decay is at 5% of the peak there.
_END = 0.95
_LEAST = 3


@check("dynamics.lr_schedule_incomplete", "LR schedule did not decay", needs=(Need.RUN,))
def lr_schedule_incomplete(audit: Audit) -> Iterator[Finding]:
    """Compare the last rate with the peak, and the last step with the plan."""
    run = logged(audit)
    schedule = run.hyper.scheduler or ""
    if _NEVER_DECAYS.search(schedule):
        return
    points = finite(run.train_log, lambda row: row.learning_rate)
    if len(points) < _LEAST:
        raise CannotTell(f"the log has {len(points)} learning rates; {_LEAST} are needed")
    (step, last), peak = points[-1], max(rate for _, rate in points)
    if peak <= 0:
        raise CannotTell("every logged learning rate is 0")
    if last <= audit.limits.dynamics.schedule_floor * peak:
        return
    if not schedule and last == peak:
        raise CannotTell("the logged rate never falls and the run folder does not name the schedule")
    total, taken = run.total_steps, max(step, run.global_step or 0)
    stopped = total is not None and taken < _END * total
    if total is not None and not stopped and (step < _END * total or _HAS_FLOOR.search(schedule)):
        return
    plan = f"step {taken} of {total}" if total else f"step {taken}, of a number that is not on record"
    yield Finding(
        "dynamics.lr_schedule_incomplete",
        Severity.MEDIUM,
        f"The learning rate ended at {last / peak:.0%} of its peak ({last:.3g} of {peak:.3g}), at {plan}",
        ("The run stopped before its planned end. " if stopped else "The schedule was longer than the run. ")
        + f"Its schedule is {excerpt(schedule) if schedule else 'not on record'}.",
        f"Train to the end, or set max_steps to {taken} so that the rate decays within the run.",
        figures={
            "last": last,
            "peak": peak,
            "step": taken,
            "total_steps": total,
            "scheduler": schedule or None,
        },
    )
