"""A high learning rate from the first step on.

What it detects
    The settings ask for no warmup (0 steps, or a share of 0) while the learning rate is at
    `high_learning_rate` (0.0003) or above.

Why it matters
    Adam's estimates are empty in the first steps, so these are its largest and least informed ones. At the
    usual 1e-4 to 2e-4 an adapter, which starts at zero, mostly stands that; from 3e-4 on it often does not, and
    the loss rises before it falls.

What to do
    Set warmup_ratio to 0.03 (transformers 5: warmup_steps to 0.03), or lower the learning rate.
"""

from __future__ import annotations

from collections.abc import Iterator

from gradian.checks.audit import Audit
from gradian.checks.config._rate import configured_rate
from gradian.checks.registry import CannotTell, Need, check
from gradian.types import Finding, Severity


@check("config.no_warmup", "No warmup with a high learning rate", needs=(Need.RUN,))
def no_warmup(audit: Audit) -> Iterator[Finding]:
    """Look for a warmup, and for a rate that needs one."""
    run = audit.artifact
    steps, share = run.hyper.warmup_steps, run.hyper.warmup_ratio
    if steps is None and share is None:
        raise CannotTell("the run folder records no warmup setting")
    if steps or share:
        return
    rate = configured_rate(run)
    if rate < audit.limits.config.high_learning_rate:
        return
    yield Finding(
        "config.no_warmup",
        Severity.MEDIUM,
        f"Training starts at lr={rate:g} without warmup",
        "The first steps are taken at the full rate, before the optimizer has seen any gradient.",
        "Set warmup_ratio to 0.03 (in transformers 5, warmup_steps to 0.03).",
        figures={"learning_rate": rate, "warmup_steps": steps, "warmup_ratio": share},
    )
