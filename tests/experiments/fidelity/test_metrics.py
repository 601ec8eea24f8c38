from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import spearmanr
from sklearn.metrics import roc_auc_score

from experiments.fidelity.metrics import (
    mean,
    mean_spearman,
    recall_of_lowest,
    resampled_auc,
    resampled_recall,
    spearman_rows,
)


@given(st.integers(0, 2**32 - 1), st.integers(1, 5), st.integers(2, 30), st.booleans())
def test_rank_correlations_are_scipys_with_and_without_ties(seed: int, m: int, k: int, ties: bool) -> None:
    drawn = np.random.default_rng(seed)
    first, second = drawn.standard_normal((2, m, k))
    if ties:
        first, second = np.round(first), np.round(second)
    for a, b, found in zip(first, second, spearman_rows(first, second), strict=True):
        constant = len(set(a)) == 1 or len(set(b)) == 1
        assert found == pytest.approx(0.0 if constant else spearmanr(a, b)[0], abs=1e-12)


def test_the_interval_is_that_of_resampling_items_and_retrainings_one_by_one() -> None:
    drawn = np.random.default_rng(4)
    real = drawn.standard_normal((6, 15))
    foretold = real + drawn.standard_normal((6, 15))
    found = mean_spearman(foretold, real, resamples=40)
    same = np.random.default_rng(0)
    runs = [np.repeat(np.arange(15), times) for times in same.multinomial(15, np.full(15, 1 / 15), size=40)]
    items = [np.repeat(np.arange(6), times) for times in same.multinomial(6, np.full(6, 1 / 6), size=40)]
    by_hand = [
        np.mean([spearmanr(foretold[i, chosen], real[i, chosen])[0] for i in asked])
        for chosen, asked in zip(runs, items, strict=True)
    ]
    assert found.value == pytest.approx(
        np.mean([spearmanr(a, b)[0] for a, b in zip(foretold, real, strict=True)])
    )
    assert [found.low, found.high] == pytest.approx(np.quantile(by_hand, [0.025, 0.975]), abs=1e-12)


def test_a_perfect_ranking_has_a_correlation_of_one_and_its_reverse_of_minus_one() -> None:
    real = np.array([[1.0, 4.0, 2.0, 9.0], [0.1, 0.2, 0.4, 0.3]])
    assert mean_spearman(3 * real + 1, real).value == 1.0
    assert mean_spearman(-real, real).value == -1.0
    assert mean_spearman(np.zeros_like(real), real).value == 0.0


@given(st.integers(0, 2**32 - 1), st.booleans())
def test_the_auc_is_sklearns_of_the_negated_scores(seed: int, ties: bool) -> None:
    drawn = np.random.default_rng(seed)
    scores = drawn.standard_normal(20)
    wanted = np.arange(20) < drawn.integers(1, 20)
    if ties:
        scores = np.round(scores)
    estimate = resampled_auc(scores, wanted, resamples=200)
    assert estimate.value == pytest.approx(roc_auc_score(wanted, -scores))
    assert 0.0 <= estimate.low <= estimate.high <= 1.0


def test_the_interval_of_an_auc_is_that_of_resampling_both_kinds_of_rows() -> None:
    drawn = np.random.default_rng(5)
    wanted = np.arange(40) < 12
    scores = drawn.standard_normal(40) - wanted
    by_hand = []
    for _ in range(3000):
        low, high = drawn.choice(scores[wanted], 12), drawn.choice(scores[~wanted], 28)
        by_hand.append(np.mean(low[:, None] < high[None, :]))
    found = resampled_auc(scores, wanted, resamples=3000)
    assert [found.low, found.high] == pytest.approx(np.quantile(by_hand, [0.025, 0.975]), abs=0.02)


def test_recall_counts_the_wanted_rows_among_as_many_lowest() -> None:
    scores = np.array([-5.0, -4.0, -3.0, 0.0, 1.0, 2.0])
    assert recall_of_lowest(scores, np.array([True, False, True, False, False, True])) == pytest.approx(2 / 3)
    assert recall_of_lowest(scores, np.array([True, True, False, False, False, False])) == 1.0
    assert recall_of_lowest(scores, np.array([False, False, False, False, True, True])) == 0.0


def test_the_interval_of_a_recall_is_that_of_resampling_both_kinds_of_rows() -> None:
    drawn = np.random.default_rng(6)
    wanted = np.arange(40) < 12
    scores = drawn.standard_normal(40) - wanted
    by_hand = []
    for _ in range(3000):
        sample = np.concatenate([drawn.choice(scores[wanted], 12), drawn.choice(scores[~wanted], 28)])
        by_hand.append(recall_of_lowest(sample, wanted))
    found = resampled_recall(scores, wanted, resamples=3000)
    assert found.value == recall_of_lowest(scores, wanted)
    assert [found.low, found.high] == pytest.approx(np.quantile(by_hand, [0.025, 0.975]), abs=0.05)


def test_the_mean_of_equal_values_has_no_width() -> None:
    estimate = mean(np.full(7, 0.3))
    assert (estimate.value, estimate.low, estimate.high) == pytest.approx((0.3, 0.3, 0.3))
    spread = mean(np.arange(100.0))
    assert spread.low < 49.5 < spread.high
    # 1.96 standard errors to either side.
    assert spread.high - spread.low == pytest.approx(2 * 1.96 * np.arange(100.0).std() / 10, rel=0.1)
