"""Nothing bounds the gradient.

What it detects
    max_grad_norm is 0, negative or infinite: the trainer clips no gradient.

Why it matters
    One row with a huge gradient (a broken encoding, an answer the model finds absurd) then moves the adapter
    further than all other rows of the step together, and a bad step is not undone. Every common trainer clips
    at 1.0 unless told not to.

What to do
    Set max_grad_norm to 1.0, or to 0.3 as QLoRA runs do.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from gradian.checks.audit import Audit
from gradian.checks.registry import CannotTell, Need, check
from gradian.types import Finding, Severity


@check("config.grad_clip_disabled", "Gradient clipping disabled", needs=(Need.RUN,))
def grad_clip_disabled(audit: Audit) -> Iterator[Finding]:
    """Look at max_grad_norm."""
    clip = audit.artifact.hyper.max_grad_norm
    if clip is None or math.isnan(clip):
        raise CannotTell("the run folder records no max_grad_norm")
    if 0 < clip < math.inf:
        return
    yield Finding(
        "config.grad_clip_disabled",
        Severity.MEDIUM,
        f"Gradient clipping is off (max_grad_norm={clip:g})",
        "A single outlying row can move the adapter without bound.",
        "Set max_grad_norm to 1.0.",
        figures={"max_grad_norm": clip if math.isfinite(clip) else None},
    )
