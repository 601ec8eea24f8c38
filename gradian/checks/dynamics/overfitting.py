"""The eval loss rises while the training loss falls.

What it detects
    For an eval set, the last eval loss is `overfitting_rise` (5%) or more above its lowest, and the training loss
    fell between these two steps (or is not logged there). From `overfitting_rise_high` (20%) and
    `overfitting_nats_high` (0.1 nats) on it is high, else medium. A rise below a fifth of that many nats is none:
    on short labels the loss is a few hundredths, and shares of it say little. Each eval set is judged by itself,
    from two evaluations on.

Why it matters
    From its lowest eval loss on the run learns its rows by heart and gets worse at everything else. The loss of
    later checkpoints says nothing about the capability.

What to do
    Use the checkpoint with the lowest eval loss (load_best_model_at_end), or train that many steps only.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import fmean

from gradian.checks.audit import Audit
from gradian.checks.dynamics._log import Point, finite, logged
from gradian.checks.registry import CannotTell, Need, check
from gradian.checks.row_findings import excerpt
from gradian.types import Finding, Severity

_LEAST = 2
_TOLD = 0.2
_ROWS = 5


@check("dynamics.overfitting", "Train loss falling while eval loss rises", needs=(Need.RUN,))
def overfitting(audit: Audit) -> Iterator[Finding]:
    """Compare each eval set's last loss with its lowest."""
    run, limits = logged(audit), audit.limits.dynamics
    train = finite(run.train_log, lambda row: row.loss)
    judged = False
    sets: dict[str, list[Point]] = {name: [] for name in run.eval_sets}
    for row in run.eval_log:
        if row.loss is not None and math.isfinite(row.loss):
            sets[row.name].append((row.step, row.loss))
    for name, points in sets.items():
        if len(points) < _LEAST:
            continue
        judged = True
        (best_step, best), (last_step, last) = min(points, key=lambda point: point[1]), points[-1]
        if best <= 0 or last / best - 1 < limits.overfitting_rise or not _fell(train, best_step, last_step):
            continue
        rise, nats = last / best - 1, last - best
        if nats < _TOLD * limits.overfitting_nats_high:
            continue
        yield Finding(
            "dynamics.overfitting",
            Severity.HIGH
            if rise >= limits.overfitting_rise_high and nats >= limits.overfitting_nats_high
            else Severity.MEDIUM,
            f"The eval loss{f' of {excerpt(name)}' if name else ''} rose {rise:.0%} from its lowest, {best:.4g} at step "
            f"{best_step}, to {last:.4g} at step {last_step}, while the training loss fell",
            f"{len(points)} evaluations; from step {best_step} on the run memorises.",
            f"Use the checkpoint of step {best_step} (load_best_model_at_end), or set max_steps to {best_step}.",
            figures={
                "eval_set": name,
                "best": best,
                "best_step": best_step,
                "last": last,
                "last_step": last_step,
                "rise": rise,
            },
        )
    if not judged:
        raise CannotTell("the log has fewer than two evaluations of any eval set")


def _fell(train: Sequence[Point], start: int, end: int) -> bool:
    """Whether the training loss fell between two steps; True where it is not logged on both sides."""
    before = [loss for step, loss in train if step <= start][-_ROWS:]
    after = [loss for step, loss in train if start < step <= end][-_ROWS:]
    return not before or not after or fmean(after) < fmean(before)
