"""The learning rate, as the adapter feels it, is too low to learn.

What it detects
    The learning rate times alpha / r (alpha / sqrt(r) under rsLoRA) is below `lr_low` (0.00001). Without the
    adapter's settings the plain rate is judged, and only lightly, for a full fine-tune uses such rates. Rates
    of optimizers that are not of Adam's kind are not judged.

Why it matters
    LoRA starts at a zero update and needs rates about ten times those of full fine-tuning. At a few millionths
    the adapter stays near zero, and what is measured is the base model: there is no change to attribute.

What to do
    Set learning_rate to 1e-4 to 2e-4 at alpha = r or 2r. A low alpha / r calls for a higher rate.
"""

from __future__ import annotations

from collections.abc import Iterator

from gradian.checks.audit import Audit
from gradian.checks.config._rate import effective_rate, rate_figures
from gradian.checks.registry import Need, check
from gradian.types import Finding, Severity

_USUAL = 1e-4


@check("config.lr_too_low", "Learning rate too low to learn", needs=(Need.RUN,))
def lr_too_low(audit: Audit) -> Iterator[Finding]:
    """Compare the effective rate with the threshold."""
    rate, low = effective_rate(audit.artifact), audit.limits.config.lr_low
    if rate.value >= low:
        return
    target = _USUAL / rate.scaling if rate.scaling else _USUAL
    yield Finding(
        "config.lr_too_low",
        Severity.MEDIUM if rate.scaling else Severity.LOW,
        f"The effective LoRA learning rate is too low to learn much ({rate.text})",
        f"Below {low:g} an adapter that starts at zero stays near it, and the model near its base.",
        f"Set learning_rate to about {target:.1g}.",
        figures=rate_figures(rate),
    )
