"""Hardly any optimizer steps.

What it detects
    The run took fewer than `min_steps` (50) optimizer steps. Where it does not say how many it took, the steps
    planned, or the epochs times the rows over the effective batch, are counted.

Why it matters
    A LoRA starts at a zero update, the warmup takes the first steps and the decay the last. With a few dozen
    steps the model has barely moved, so a change in a capability is likely to be noise, and influence, which
    supposes a run near its optimum, is a rough estimate.

What to do
    Lower the effective batch (gradient_accumulation_steps) or train longer, so that there are a few hundred
    steps.
"""

from __future__ import annotations

from collections.abc import Iterator

from gradian.checks.audit import Audit
from gradian.checks.config._amount import optimizer_steps
from gradian.checks.registry import Need, check
from gradian.types import Finding, Severity


@check("config.undertrained", "Too few optimizer steps", needs=(Need.RUN,))
def undertrained(audit: Audit) -> Iterator[Finding]:
    """Compare the steps with the threshold."""
    run, least = audit.artifact, audit.limits.config.min_steps
    steps = optimizer_steps(audit)
    if steps >= least:
        return
    planned = f" of {run.total_steps} planned" if (run.total_steps or 0) > steps else ""
    batch = run.hyper.effective_batch
    yield Finding(
        "config.undertrained",
        Severity.MEDIUM,
        f"Only {steps} optimizer steps{planned}: fewer than {least}",
        f"A step holds {batch} rows." if batch else "The run folder records no batch size.",
        f"Train for at least {least} steps: lower gradient_accumulation_steps, or raise max_steps or "
        "num_train_epochs.",
        figures={"steps": steps, "planned": run.total_steps, "effective_batch": batch},
    )
