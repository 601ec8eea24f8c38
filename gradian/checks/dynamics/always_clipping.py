"""The gradient is clipped on nearly every step.

What it detects
    The gradient norm (logged before clipping) is at max_grad_norm or above on `clipping_share` (90%) or more of
    the logged rows, of which there are at least five.

Why it matters
    Clipping is meant for the odd outlier. When every step is clipped, all updates have one length and only their
    direction is left, mostly that of a few rows: the rate that was set is not the rate that was used. In the
    recorded run with batches of one it was 97% of the steps, a symptom that no setting shows.

What to do
    Raise the effective batch or lower the learning rate; if the run is otherwise sound, raise max_grad_norm to
    the typical norm.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from gradian.checks.audit import Audit
from gradian.checks.dynamics._log import grad_norms
from gradian.checks.registry import CannotTell, Need, check
from gradian.types import Finding, Severity

_LEAST = 5
# Norms that a trainer logs after clipping come out a rounding error below the threshold.
_AT = 1 - 1e-4


@check("dynamics.always_clipping", "Gradient norm pinned at the clip threshold", needs=(Need.RUN,))
def always_clipping(audit: Audit) -> Iterator[Finding]:
    """Count the norms at the threshold."""
    norms = [norm for _, norm in grad_norms(audit, _LEAST)]
    clip = audit.artifact.hyper.max_grad_norm
    if clip is None:
        raise CannotTell("the run folder records no max_grad_norm")
    clipped = sum(norm >= clip * _AT for norm in norms)
    share = clipped / len(norms)
    if clip <= 0 or share < audit.limits.dynamics.clipping_share:
        return
    middle = median(norms)
    yield Finding(
        "dynamics.always_clipping",
        Severity.MEDIUM,
        f"The gradient norm was at the clip threshold ({clip:g}) in {share:.0%} of {len(norms)} logged steps",
        f"The median norm is {middle:.3g}, so a typical step is scaled down to {min(1.0, clip / middle):.0%}.",
        f"Double gradient_accumulation_steps or halve learning_rate; else set max_grad_norm to {middle:.2g}.",
        figures={
            "share": share,
            "clipped": clipped,
            "rows": len(norms),
            "max_grad_norm": clip,
            "median": middle,
        },
    )
