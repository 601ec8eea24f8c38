from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from gradian.errors import EvaluationError
from gradian.evaluation import bootstrap
from gradian.evaluation.bootstrap import Interval, paired_bootstrap


def scores(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float64)


def test_the_interval_is_that_of_an_explicit_loop_over_resamples() -> None:
    rng = np.random.default_rng(5)
    base, tuned = rng.normal(size=7), rng.normal(size=7)
    draws = np.random.default_rng(11).integers(0, 7, size=(300, 7))
    means = sorted(sum(tuned[i] - base[i] for i in row) / 7 for row in draws)

    def quantile(share: float) -> float:
        place = share * (len(means) - 1)
        k = int(place)
        return float(means[k] + (place - k) * (means[min(k + 1, len(means) - 1)] - means[k]))

    got = paired_bootstrap(base, tuned, 300, 0.9, 11)
    assert got.delta == pytest.approx(sum(tuned - base) / 7)
    assert got.low == pytest.approx(quantile(0.05))
    assert got.high == pytest.approx(quantile(0.95))


def test_the_interval_agrees_with_scipy() -> None:
    rng = np.random.default_rng(0)
    base = rng.normal(size=40)
    tuned = base + rng.normal(-0.3, 1.0, size=40)
    ours = paired_bootstrap(base, tuned, 20000, 0.95, 1)
    theirs = stats.bootstrap(
        (tuned - base,), np.mean, n_resamples=20000, confidence_level=0.95, method="percentile", rng=2
    ).confidence_interval
    assert ours.low == pytest.approx(theirs.low, abs=0.02)
    assert ours.high == pytest.approx(theirs.high, abs=0.02)


def test_eight_flips_in_sixteen_items_give_the_published_interval() -> None:
    base = np.array([1.0] * 15 + [0.0])
    tuned = np.array([1.0] * 7 + [0.0] * 9)
    got = paired_bootstrap(base, tuned, 2000, 0.95, 1234)
    assert got == Interval(-0.5, -0.75, -0.25)


def test_pairs_are_kept_together_so_a_shared_spread_does_not_widen_the_interval() -> None:
    base = np.arange(50, dtype=np.float64)
    got = paired_bootstrap(base, base - 1.0, 500, 0.95, 0)
    assert (got.low, got.high) == (-1.0, -1.0)


def test_equal_differences_give_an_interval_without_width() -> None:
    got = paired_bootstrap(scores(1, 1, 1), scores(1, 1, 1), 100, 0.95, 0)
    assert got == Interval(0.0, 0.0, 0.0)


@pytest.mark.parametrize("change", [-1.0, 1.0, 0.0])
def test_a_single_item_never_excludes_zero(change: float) -> None:
    got = paired_bootstrap(scores(0.0), scores(change), 100, 0.95, 0)
    assert got.delta == change
    assert got.low <= 0.0 <= got.high


def test_the_same_seed_gives_the_same_interval_and_another_seed_another() -> None:
    rng = np.random.default_rng(3)
    base, tuned = rng.normal(size=30), rng.normal(size=30)
    first = paired_bootstrap(base, tuned, 200, 0.95, 7)
    assert paired_bootstrap(base, tuned, 200, 0.95, 7) == first
    assert paired_bootstrap(base, tuned, 200, 0.95, 8) != first


def test_drawing_in_slices_covers_every_resample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap, "_DRAWS", 35)
    base = np.zeros(10)
    tuned = np.linspace(1.0, 2.0, 10)
    got = paired_bootstrap(base, tuned, 101, 0.99, 7)
    assert 1.0 <= got.low < got.delta < got.high <= 2.0


@pytest.mark.parametrize(
    ("base", "tuned"),
    [((), ()), ((1.0,), (1.0, 0.0)), ((1.0, float("nan")), (1.0, 0.0)), ((1.0, float("inf")), (1.0, 0.0))],
)
def test_scores_that_cannot_be_compared_are_refused(
    base: tuple[float, ...], tuned: tuple[float, ...]
) -> None:
    with pytest.raises(EvaluationError):
        paired_bootstrap(scores(*base), scores(*tuned), 100, 0.95, 0)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=20))
def test_the_interval_brackets_values_within_the_range_of_differences(
    pairs: list[tuple[bool, bool]],
) -> None:
    base = np.array([float(a) for a, _ in pairs])
    tuned = np.array([float(b) for _, b in pairs])
    got = paired_bootstrap(base, tuned, 200, 0.95, 0)
    mirrored = paired_bootstrap(tuned, base, 200, 0.95, 0)
    assert -1.0 <= got.low <= got.high <= 1.0
    assert (mirrored.low, mirrored.high) == pytest.approx((-got.high, -got.low))
