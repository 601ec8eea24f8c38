"""The loss jumps.

What it detects
    A training loss at `spike_ratio` (3) times the median of all logged losses or above, that is also half as
    high again as the losses just before it, and `spike_nats` (0.1) above them. The high losses that a run starts
    with are no spikes, nor is the noise of a loss near zero. Rows in a row count as one spike.

Why it matters
    A spike is a step too large, or a batch unlike the others: a broken row, a wrong template, another language.
    The recorded run with batches of one at 5e-4 had one, and three other findings that point the same way.

What to do
    Look at the rows of that step. If they are in order, lower the learning rate, raise the effective batch, or
    lower max_grad_norm to 0.3.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from gradian.checks.audit import Audit
from gradian.checks.dynamics._log import losses
from gradian.checks.registry import Need, check
from gradian.types import Finding, Severity

_LEAST = 5
_BEFORE = 5
_RISE = 1.5


@check("dynamics.loss_spike", "Sudden loss spikes", needs=(Need.RUN,))
def loss_spike(audit: Audit) -> Iterator[Finding]:
    """Look for losses far above the median that come from below."""
    points, limits = losses(audit, _LEAST), audit.limits.dynamics
    values = [loss for _, loss in points]
    middle = median(values)
    high = [
        i
        for i in range(1, len(values))
        if values[i] >= limits.spike_ratio * middle
        and values[i] >= _RISE * (before := median(values[max(0, i - _BEFORE) : i]))
        and values[i] >= before + limits.spike_nats
    ]
    known = set(high)
    starts = [i for i in high if i - 1 not in known]
    if not starts:
        return
    highest = max(high, key=values.__getitem__)
    yield Finding(
        "dynamics.loss_spike",
        Severity.MEDIUM,
        f"{len(starts)} loss spike(s) above {limits.spike_ratio:g}x the median loss "
        f"(up to {values[highest]:.3g} against {middle:.3g}, at step {points[highest][0]})",
        f"At step(s) {', '.join(str(points[i][0]) for i in starts[:10])}.",
        "Look at the rows of these steps; else halve learning_rate, or set max_grad_norm to 0.3.",
        figures={
            "spikes": len(starts),
            "steps": [points[i][0] for i in starts],
            "median": middle,
            "highest": values[highest],
        },
    )
