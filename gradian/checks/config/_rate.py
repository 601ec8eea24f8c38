"""The learning rate as the adapter feels it."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from gradian.checks.registry import CannotTell
from gradian.checks.row_findings import excerpt
from gradian.runs.artifact import RunArtifact

# Their steps do not have Adam's size at the same rate: Prodigy and D-Adapt find it themselves and want 1.0, Lion
# wants a third to a tenth, SGD, Muon and schedule-free runs want more, GaLore and APOLLO rescale it again.
# Adafactor is not among them: transformers switches its relative steps off and hands it the rate as it is.
_OTHER_SCALE = re.compile(
    r"(?i)prodigy|lion|schedule_?free|muon|dion|sgd|adagrad|lomo|galore|apollo|lamb|lars|sophia|came|dadapt"
)


@dataclass(frozen=True)
class EffectiveRate:
    """A learning rate that Adam-like optimizers would take.

    Attributes:
        value: rate times the adapter's scaling, or the plain rate where the adapter's settings are not known.
        configured: the rate in the settings.
        scaling: what the adapter multiplies its update by; None when not known.
        text: how the value comes about.
    """

    value: float
    configured: float
    scaling: float | None
    text: str


def configured_rate(run: RunArtifact) -> float:
    """The rate in the settings, in the sense of Adam.

    Raises:
        CannotTell: there is none, or the optimizer takes rates of another size.
    """
    rate = run.hyper.learning_rate
    if rate is None or not math.isfinite(rate):
        raise CannotTell("the run folder records no learning rate")
    optimizer = run.hyper.optimizer or ""
    if _OTHER_SCALE.search(optimizer):
        raise CannotTell(
            f"rates of the optimizer {excerpt(optimizer)} cannot be judged as if they were Adam's"
        )
    return rate


def effective_rate(run: RunArtifact) -> EffectiveRate:
    """The rate times alpha / r (alpha / sqrt(r) under rsLoRA).

    Raises:
        CannotTell: as `configured_rate`.
    """
    rate = configured_rate(run)
    scaling = run.lora.scaling if run.lora else None
    if scaling is None:
        return EffectiveRate(rate, rate, None, f"lr={rate:g}; alpha and r are not known, so it is not scaled")
    root = "alpha/sqrt(r)" if run.lora and run.lora.use_rslora else "alpha/r"
    value = rate * scaling
    return EffectiveRate(value, rate, scaling, f"lr={rate:g} x {root}={scaling:.4g} = {value:.4g}")


def rate_figures(rate: EffectiveRate) -> dict[str, float | None]:
    """The numbers of an effective rate, as a finding carries them."""
    return {
        "learning_rate": rate.configured,
        "scaling": rate.scaling,
        "effective_learning_rate": rate.value,
    }
