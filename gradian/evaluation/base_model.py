"""How much of the blame the base model bounds.

Gradian never sees what the base model was trained on, but it runs the base model, and three things that it
shows limit what any training example can be charged with. They qualify a verdict; they are no claim about
the base model's training.
"""

from __future__ import annotations

from dataclasses import dataclass

from gradian.evaluation.capability import CapabilityResult

THIN_MARGIN_NATS = 1.0
"""A capability held by less than this flips under almost any fine-tune."""

LOW_ACCURACY = 0.5
"""Below this share of right answers there was little to lose."""

LOW_LOG_LIKELIHOOD = -2.0
"""The same for `loglik`, in nats a token: the wanted tokens had a probability of about 0.14 each."""


@dataclass(frozen=True)
class BaseModelBounds:
    """What the base model says about a capability's loss.

    Attributes:
        already_failing: ids of the items that the base model fails too. No training example explains them.
        base_score: the base model's mean score.
        low_base_score: it is below `LOW_ACCURACY`, or `LOW_LOG_LIKELIHOOD` under a likelihood.
        thin_margin: ids of the regressed items whose margin is below `THIN_MARGIN_NATS`.
        n_regressed: number of items that regressed.
        n_margins: number of those that have a margin.
        mean_margin: their mean margin in nats a token, None when there is none.
    """

    already_failing: tuple[str, ...]
    base_score: float
    low_base_score: bool
    thin_margin: tuple[str, ...]
    n_regressed: int
    n_margins: int
    mean_margin: float | None


def base_model_bounds(result: CapabilityResult) -> BaseModelBounds:
    """Return what the base model bounds, from a measured capability."""
    floor = LOW_LOG_LIKELIHOOD if result.proxy_used else LOW_ACCURACY
    margins = [(item.example_id, item.margin) for item in result.items if item.margin is not None]
    return BaseModelBounds(
        already_failing=tuple(item.example_id for item in result.items if item.base_failed),
        base_score=result.base,
        low_base_score=result.base < floor,
        thin_margin=tuple(example_id for example_id, margin in margins if margin < THIN_MARGIN_NATS),
        n_regressed=sum(item.regressed for item in result.items),
        n_margins=len(margins),
        mean_margin=result.mean_margin,
    )
