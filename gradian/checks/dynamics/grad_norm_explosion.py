"""The gradient norm blew up.

What it detects
    A logged gradient norm at `explosion_ratio` (50) times the median of the logged norms or above, and at five
    times the norms just before it. The large norms that a run starts with, before it knows the format, are none:
    they fall, and by a hundred times where the answers are short labels. Norms that are NaN or infinite are the
    business of `dynamics.nan_grad_norm`.

Why it matters
    Norms of a sound run stay within a factor of ten or so of each other. Fifty times the median is a row that
    the model finds absurd (a broken encoding, a wrong template), or a run that is leaving its valley. Clipping
    bounds the step but keeps its direction.

What to do
    Look at the rows of that step first. Then lower the learning rate, and set max_grad_norm to 1.0 or lower.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from gradian.checks.audit import Audit
from gradian.checks.dynamics._log import grad_norms
from gradian.checks.registry import Need, check
from gradian.types import Finding, Severity

_LEAST = 5
_BEFORE = 10
_RISE = 5.0


@check("dynamics.grad_norm_explosion", "Gradient-norm blowup", needs=(Need.RUN,))
def grad_norm_explosion(audit: Audit) -> Iterator[Finding]:
    """Compare each norm with the median of all and with those before it."""
    points = grad_norms(audit, _LEAST)
    middle = median(norm for _, norm in points)
    ratio = audit.limits.dynamics.explosion_ratio
    norms = [norm for _, norm in points]
    blown = [
        points[i]
        for i in range(1, len(norms))
        if middle > 0
        and norms[i] >= ratio * middle
        and norms[i] >= _RISE * median(norms[max(0, i - _BEFORE) : i])
    ]
    if not blown:
        return
    step, highest = max(blown, key=lambda point: point[1])
    yield Finding(
        "dynamics.grad_norm_explosion",
        Severity.HIGH,
        f"The gradient norm reached {highest:.3g} at step {step}, {highest / middle:.0f}x its median {middle:.3g}",
        f"{len(blown)} of {len(points)} logged norms are {ratio:g}x the median or more, the first at step "
        f"{blown[0][0]}.",
        f"Look at the rows of step {step}; halve learning_rate and set max_grad_norm to 1.0.",
        figures={
            "step": step,
            "highest": highest,
            "median": middle,
            "count": len(blown),
            "rows": len(points),
        },
    )
