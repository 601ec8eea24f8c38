"""The learning rate, as the adapter feels it, is too high.

What it detects
    The learning rate times alpha / r (alpha / sqrt(r) under rsLoRA) is at `lr_high` (0.001) or above, or at
    `lr_critical` (0.003) or above. Without the adapter's settings the plain rate is judged. Rates of optimizers
    that are not of Adam's kind (Prodigy, Lion, Muon, SGD, schedule-free and others) are not judged.

Why it matters
    LoRA multiplies its update by alpha / r, so the configured rate alone understates the step. Too large a step
    overwrites what the base model knew, and every example looks equally guilty. Recorded runs on 800 clean rows:
    at 0.004 effective the capability fell by 1.84 nats and 13 of 16 items flipped (critical), at 0.001 with
    batches of one by 2.43 nats (high). Usual rates are 1e-4 to 2e-4 with alpha of r to 2r, far below.

What to do
    Set learning_rate to 1e-4 to 2e-4 at alpha = r or 2r, and train again. Influence scores of this run say
    little about the data.
"""

from __future__ import annotations

from collections.abc import Iterator

from gradian.checks.audit import Audit
from gradian.checks.config._rate import EffectiveRate, effective_rate, rate_figures
from gradian.checks.registry import Need, check
from gradian.runs.artifact import LoraSettings
from gradian.types import Finding, Severity

# A rate that is written 5e-4 and doubled must reach 1e-3 whatever the last bit of the product is.
_ROUNDING = 1 - 1e-9
_USUAL = 2e-4
_USUAL_SCALING = 2


@check("config.lr_too_high", "Learning rate too high for LoRA", needs=(Need.RUN,))
def lr_too_high(audit: Audit) -> Iterator[Finding]:
    """Compare the effective rate with the two thresholds."""
    rate, limits = effective_rate(audit.artifact), audit.limits.config
    critical = rate.value >= limits.lr_critical * _ROUNDING
    if not critical and rate.value < limits.lr_high * _ROUNDING:
        return
    target = f"learning_rate to about {_USUAL / max(rate.scaling or 1.0, 1.0):.1g}"
    yield Finding(
        "config.lr_too_high",
        Severity.CRITICAL if critical else Severity.HIGH,
        f"The effective LoRA learning rate is too high ({rate.text})",
        f"From {limits.lr_critical if critical else limits.lr_high:g} on, steps are large enough to overwrite what "
        "the base model knew, whatever the rows say.",
        f"Set {target}{_or_alpha(audit.artifact.lora, rate)}, and train again.",
        figures=rate_figures(rate),
    )


def _or_alpha(lora: LoraSettings | None, rate: EffectiveRate) -> str:
    # A usual rate under an unusual alpha: then it is alpha that somebody set wrong.
    if lora is None or not lora.r or lora.use_rslora or (rate.scaling or 0) <= _USUAL_SCALING:
        return ""
    return f", or lora_alpha to {2 * lora.r} (2r) with a learning_rate of at most {_USUAL:g}"
