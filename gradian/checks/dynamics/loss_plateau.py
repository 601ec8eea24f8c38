"""The loss did not fall.

What it detects
    The mean of the last tenth of the logged losses (three rows at least) is less than `plateau_drop` (2%) below
    that of the first tenth, or above it. It takes `min_logged_steps` (10) losses to judge.

Why it matters
    Rows that teach anything lower the loss in the first steps already. A flat one means that the adapter got no
    gradient (frozen or detached layers), that the rate is far too low or too high, or that the model knew the
    rows before.

What to do
    Check that trainable parameters get gradients and that labels are not all -100; then raise learning_rate to
    1e-4 to 2e-4, or lower it if the gradient is clipped throughout.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean

from gradian.checks.audit import Audit
from gradian.checks.dynamics._log import losses
from gradian.checks.registry import Need, check
from gradian.types import Finding, Severity

_LEAST_ROWS = 3


@check("dynamics.loss_plateau", "Loss barely moved", needs=(Need.RUN,))
def loss_plateau(audit: Audit) -> Iterator[Finding]:
    """Compare the two ends of the loss."""
    limits = audit.limits.dynamics
    values = [loss for _, loss in losses(audit, limits.min_logged_steps)]
    ends = max(_LEAST_ROWS, len(values) // 10)
    start, end = fmean(values[:ends]), fmean(values[-ends:])
    if start <= 0 or 1 - end / start >= limits.plateau_drop:
        return
    change = end / start - 1
    yield Finding(
        "dynamics.loss_plateau",
        Severity.MEDIUM,
        f"The training loss {'rose' if change > 0 else 'barely moved'}: {start:.4g} to {end:.4g} ({change:+.1%}) "
        f"over {len(values)} logged rows",
        f"Means of the first and the last {ends} rows; below {limits.plateau_drop:.0%} counts as flat.",
        "Check that the adapter gets gradients; then set learning_rate to 1e-4 to 2e-4.",
        figures={"start": start, "end": end, "change": change, "rows": len(values)},
    )
