"""The confidence interval that gates the verdict."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gradian.errors import EvaluationError
from gradian.types import FloatArray

# Index entries drawn at a time: 32 MB of int64. Part of the definition, since it fixes the random stream.
_DRAWS = 1 << 22


@dataclass(frozen=True)
class Interval:
    """A mean paired difference (tuned minus base) with its confidence interval, in the metric's unit."""

    delta: float
    low: float
    high: float


def paired_bootstrap(
    base: FloatArray, tuned: FloatArray, n_resamples: int, level: float, seed: int
) -> Interval:
    """Return the mean of `tuned - base` with its percentile bootstrap interval.

    Items are resampled with replacement, base and tuned score together (Efron and Tibshirani 1993, chapter
    13); the bounds are the linearly interpolated quantiles of the resampled means. The same arguments give
    the same interval.

    One item says nothing about spread, and its resamples are all itself: its interval is opened to zero, so
    that a single item never passes the gate.

    Args:
        base: float64 [n].
        tuned: float64 [n], of the same items.
        n_resamples: number of resamples.
        level: confidence level in (0, 1).
        seed: seed of the resampling.

    Raises:
        EvaluationError: no items, differing lengths, or a score that is not finite.
    """
    base, tuned = np.asarray(base, dtype=np.float64), np.asarray(tuned, dtype=np.float64)
    if base.ndim != 1 or base.shape != tuned.shape:
        raise EvaluationError(
            "base and tuned scores do not pair up",
            found=f"shapes {base.shape} and {tuned.shape}",
            expected="one score each for the same items",
        )
    n = base.shape[0]
    if n == 0:
        raise EvaluationError("there is no eval item to measure", fix="put rows into the eval set")
    differences = tuned - base
    if not np.isfinite(differences).all():
        raise EvaluationError(
            "a score is not a finite number", where=f"eval item {int(np.argmin(np.isfinite(differences)))}"
        )
    delta = float(differences.mean())
    if n == 1:
        return Interval(delta, min(delta, 0.0), max(delta, 0.0))
    rng = np.random.default_rng(seed)
    means = np.empty(n_resamples)
    step = max(1, _DRAWS // n)
    for start in range(0, n_resamples, step):
        rows = min(step, n_resamples - start)
        means[start : start + rows] = differences[rng.integers(0, n, size=(rows, n))].mean(axis=1)
    tail = (1 - level) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return Interval(delta, float(low), float(high))
