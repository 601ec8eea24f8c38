"""The gradient is NaN or infinite.

What it detects
    The log has gradient norms that are NaN or infinite. It is critical where they go on to the end, or the loss
    beside one is zero or not finite: the run has diverged, or trained on nothing, from that step on. Single ones
    are medium; under fp16 low, for its loss scaler meets infinities by design and skips these steps.

Why it matters
    transformers' trainers log a loss of 0.0 for steps whose loss was NaN, so a run that broke looks like one
    that has learnt all there is. Weights after a NaN step are NaN, or stay what they were.

What to do
    Use a checkpoint from before that step; look at the rows of it, train in bf16, lower the learning rate.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from gradian.checks.audit import Audit
from gradian.checks.dynamics._log import logged
from gradian.checks.registry import CannotTell, Need, check
from gradian.runs.artifact import LogRow
from gradian.types import Finding, Severity


@check("dynamics.nan_grad_norm", "NaN or inf gradient norms", needs=(Need.RUN,), addition=True)
def nan_grad_norm(audit: Audit) -> Iterator[Finding]:
    """Look for norms that are not finite, and at the losses beside them."""
    run = logged(audit)
    rows = [row for row in run.train_log if row.grad_norm is not None]
    if not rows:
        raise CannotTell("the log holds no gradient norms")
    bad = [row for row in rows if not math.isfinite(row.grad_norm or 0.0)]
    if not bad:
        return
    first = bad[0]
    diverged = bad[-1] is rows[-1] or any(map(_broken, bad))
    loss = "none" if first.loss is None else f"{first.loss:g}"
    yield Finding(
        "dynamics.nan_grad_norm",
        Severity.CRITICAL if diverged else Severity.LOW if run.hyper.fp16 else Severity.MEDIUM,
        f"The gradient norm is {first.grad_norm:g} at step {first.step}, where the loss is {loss}"
        + (": the run diverged or trained on nothing" if diverged else ""),
        f"{len(bad)} of {len(rows)} logged norms are not finite, the last at step {bad[-1].step}.",
        "Nothing, where these are a few steps that the loss scaler of fp16 skipped; else set bf16 to true and fp16 to "
        "false."
        if run.hyper.fp16 and not diverged
        else f"Use a checkpoint from before step {first.step}; look at the rows of that step, set bf16 to true and lower "
        "learning_rate.",
        figures={
            "step": first.step,
            "last_step": bad[-1].step,
            "count": len(bad),
            "norms": len(rows),
            "loss": first.loss if first.loss is not None and math.isfinite(first.loss) else None,
        },
    )


def _broken(row: LogRow) -> bool:
    return row.loss is not None and (row.loss == 0.0 or not math.isfinite(row.loss))
