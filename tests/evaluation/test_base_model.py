from __future__ import annotations

import pytest

from gradian.evaluation.base_model import base_model_bounds
from gradian.evaluation.capability import CapabilityResult, ItemResult


def item(name: str, base: float, tuned: float, margin: float | None = None) -> ItemResult:
    return ItemResult(
        example_id=name,
        prompt="q",
        expected="a",
        base_text="b",
        tuned_text="t",
        base_token_ids=(1,),
        tuned_token_ids=(2,),
        base_score=base,
        tuned_score=tuned,
        margin=margin,
        regressed=tuned < base,
        flipped=tuned < base,
        base_failed=base == tuned == 0.0,
    )


def result(
    items: list[ItemResult], *, proxy: bool = False, mean_margin: float | None = None
) -> CapabilityResult:
    base = sum(i.base_score for i in items) / len(items)
    tuned = sum(i.tuned_score for i in items) / len(items)
    return CapabilityResult(
        name="c",
        metric="loglik" if proxy else "contains",
        proxy_used=proxy,
        items=tuple(items),
        base=base,
        tuned=tuned,
        delta=tuned - base,
        ci_low=tuned - base,
        ci_high=tuned - base,
        n_items=len(items),
        n_flipped=0,
        n_already_failing=0,
        verdict="not_significant",
        mean_margin=mean_margin,
    )


def test_it_lists_items_that_fail_either_way_and_thin_margins_below_one_nat() -> None:
    items = [
        item("right", 1, 1),
        item("failing", 0, 0),
        item("learned", 0, 1),
        item("firm", 1, 0, 1.0),
        item("thin", 1, 0, 0.99),
        item("wrong way", 1, 0, -2.0),
    ]
    bounds = base_model_bounds(result(items, mean_margin=-0.003))
    assert bounds.already_failing == ("failing",)
    assert bounds.thin_margin == ("thin", "wrong way")
    assert (bounds.n_regressed, bounds.n_margins, bounds.mean_margin) == (3, 3, -0.003)


@pytest.mark.parametrize(
    ("score", "proxy", "low"),
    [
        (0.49, False, True),
        (0.5, False, False),
        (-2.0847, True, True),
        (-5.0489, True, True),
        (-1.0, True, False),
    ],
)
def test_a_low_base_score_is_one_with_little_to_lose(score: float, proxy: bool, low: bool) -> None:
    bounds = base_model_bounds(result([item("a", score, score)], proxy=proxy))
    assert (bounds.low_base_score, bounds.base_score) == (low, score)
