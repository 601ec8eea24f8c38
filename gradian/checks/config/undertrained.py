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
from gradian.runs.artifact import RunArtifact
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
        _fix(run, steps, least),
        figures={"steps": steps, "planned": run.total_steps, "effective_batch": batch},
    )


def _fix(run: RunArtifact, steps: int, least: int) -> str:
    planned, wanted, batch = run.total_steps or 0, run.hyper.max_steps, run.hyper.effective_batch
    if planned >= least:
        return f"Train to the end of the {planned} steps that were planned."
    if wanted and wanted < least:
        return f"Raise max_steps from {wanted} to {least} or more."
    rows = steps * batch if batch else None
    if rows is None:
        return f"Lower gradient_accumulation_steps until a run has at least {least} steps."
    if rows < least:
        return f"Add rows: one row a step (gradient_accumulation_steps 1) would still be only {rows} steps."
    return (
        f"Lower the rows a step from {batch} to {rows // least} (gradient_accumulation_steps first, then "
        f"per_device_train_batch_size), which makes {least} steps or more of the same rows."
    )
