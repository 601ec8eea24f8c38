"""How well a ranking foretells what retrainings do, with bootstrap intervals.

Rank correlations are resampled over items and retrainings at once: both are draws, and an interval over one of them
alone would be too narrow. Of a resampled set the ranks are those of the set with its repetitions, ties sharing
their mean rank.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gradian.types import BoolArray, FloatArray

RESAMPLES = 500
LEVEL = 0.95
_SEED = 0


@dataclass(frozen=True)
class Estimate:
    """A figure with its bootstrap interval.

    Attributes:
        value: of the sample itself.
        low, high: the interval's ends.
    """

    value: float
    low: float
    high: float


def spearman_rows(first: FloatArray, second: FloatArray) -> FloatArray:
    """Return the Spearman correlation of each pair of rows, float64 [m]; 0 where a row ranks nothing.

    Args:
        first: [m, K].
        second: [m, K].
    """
    ones = np.ones((first.shape[1], 1))
    return _weighted_spearman(_order(first), _order(second), ones)[:, 0]


def mean_spearman(first: FloatArray, second: FloatArray, resamples: int = RESAMPLES) -> Estimate:
    """Return the mean over items of the Spearman correlation over retrainings.

    Args:
        first: predicted, [items, K].
        second: real, [items, K].
        resamples: of items and retrainings together.
    """
    items, k = first.shape
    drawn = np.random.default_rng(_SEED)
    counts = drawn.multinomial(k, np.full(k, 1 / k), size=resamples).T.astype(np.float64)
    of_items = drawn.multinomial(items, np.full(items, 1 / items), size=resamples).T.astype(np.float64)
    each = _weighted_spearman(_order(first), _order(second), counts)
    return _estimate(float(spearman_rows(first, second).mean()), (each * of_items).sum(axis=0) / items)


def _order(values: FloatArray) -> FloatArray:
    """Return which value is below which, a tie counting half: float64 [m, K, K], [i, j] about j below i."""
    below = values[:, None, :] < values[:, :, None]
    same = values[:, None, :] == values[:, :, None]
    return below + 0.5 * same


def _weighted_spearman(first: FloatArray, second: FloatArray, counts: FloatArray) -> FloatArray:
    """Return rank correlations with value j taken counts[j] times.

    Args:
        first, second: orders, [m, K, K].
        counts: [K, resamples].

    Returns:
        float64 [m, resamples].
    """
    total = counts.sum(axis=0)
    ranks = [order @ counts for order in (first, second)]
    weighted = [rank * counts for rank in ranks]
    sums = [each.sum(axis=1) for each in weighted]

    def covariance(i: int, j: int) -> FloatArray:
        together: FloatArray = (weighted[i] * ranks[j]).sum(axis=1) - sums[i] * sums[j] / total
        return together

    products = covariance(0, 1)
    scale = np.sqrt(np.maximum(covariance(0, 0), 0.0) * np.maximum(covariance(1, 1), 0.0))
    return np.divide(products, scale, out=np.zeros_like(products), where=scale > 1e-9 * total)


def mean(values: FloatArray, resamples: int = RESAMPLES) -> Estimate:
    """Return the mean of some values [m], resampled over them."""
    n = len(values)
    drawn = np.random.default_rng(_SEED).integers(n, size=(resamples, n))
    return _estimate(float(values.mean()), values[drawn].mean(axis=1))


def resampled_auc(scores: FloatArray, wanted: BoolArray, resamples: int = RESAMPLES) -> Estimate:
    """Return `gradian.demo.run.auc_of_lowest`, resampled over the wanted and over the other rows.

    Args:
        scores: [n].
        wanted: [n]; some True and some False.
        resamples: how many.
    """
    low, high = scores[wanted][:, None], scores[~wanted][None, :]
    wins = (low < high) + 0.5 * (low == high)
    a, b = wins.shape
    drawn = np.random.default_rng(_SEED)
    rows = drawn.multinomial(a, np.full(a, 1 / a), size=resamples)
    columns = drawn.multinomial(b, np.full(b, 1 / b), size=resamples)
    return _estimate(float(wins.mean()), ((rows @ wins) * columns).sum(axis=1) / (a * b))


def recall_of_lowest(scores: FloatArray, wanted: BoolArray) -> float:
    """Return the share of the wanted rows among as many rows as there are wanted ones, lowest scores first."""
    k = int(wanted.sum())
    return float(wanted[np.argsort(scores, kind="stable")[:k]].mean())


def resampled_recall(scores: FloatArray, wanted: BoolArray, resamples: int = RESAMPLES) -> Estimate:
    """Return `recall_of_lowest`, resampled over the wanted and over the other rows."""
    k, n = int(wanted.sum()), len(scores)
    drawn = np.random.default_rng(_SEED)
    rows = np.concatenate(
        [
            drawn.choice(np.flatnonzero(wanted), size=(resamples, k)),
            drawn.choice(np.flatnonzero(~wanted), size=(resamples, n - k)),
        ],
        axis=1,
    )
    lowest = np.argsort(scores[rows], axis=1, kind="stable")[:, :k]
    return _estimate(recall_of_lowest(scores, wanted), (lowest < k).mean(axis=1))


def _estimate(value: float, resampled: FloatArray) -> Estimate:
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(resampled, [tail, 1 - tail])
    return Estimate(value, float(low), float(high))
