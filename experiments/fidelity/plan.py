"""Which retrainings the bank consists of, in the order in which they are worth having."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from gradian.types import BoolArray, IntArray

# Of the rows, rounded up: what a tail patch takes away.
TAIL_SHARE = 0.01
# Draws of as many rows at random, beside them.
RANDOM_TAILS = 4
# Drawn numbers of one purpose say nothing about those of another.
_SUBSET, _RANDOM = 0, 1


@dataclass(frozen=True, eq=False)
class Retraining:
    """One retraining to make.

    Attributes:
        name: unique in a bank.
        seed: of initialisation and order.
        kept: bool [n]; the rows to train on.
    """

    name: str
    seed: int
    kept: BoolArray


def subset(n: int, k: int, plan_seed: int) -> BoolArray:
    """Return the k-th random half of n rows; it does not depend on how many are drawn."""
    kept = np.zeros(n, dtype=np.bool_)
    kept[np.random.default_rng([plan_seed, _SUBSET, k]).permutation(n)[: n // 2]] = True
    return kept


def random_tail(n: int, i: int, plan_seed: int) -> IntArray:
    """Return the i-th random draw of as many rows as a tail patch takes away."""
    drawn = np.random.default_rng([plan_seed, _RANDOM, i]).permutation(n)[: tail_size(n)]
    return drawn.astype(np.int64)


def tail_size(n: int) -> int:
    """How many rows 1% of n are, one at least."""
    return int(np.ceil(TAIL_SHARE * n))


def whole(n: int, seed: int) -> Retraining:
    """Return the retraining on all rows."""
    return Retraining(f"whole/{seed}", seed, np.ones(n, dtype=np.bool_))


def subsets(n: int, ks: Sequence[int], seed: int, plan_seed: int) -> Iterator[Retraining]:
    """Yield the retrainings on random halves."""
    for k in ks:
        yield Retraining(f"subset/{k:03}/{seed}", seed, subset(n, k, plan_seed))


def without_topics(topics: Sequence[str], seed: int) -> Iterator[Retraining]:
    """Yield the retrainings that leave one topic out each."""
    for topic in dict.fromkeys(topics):
        yield Retraining(f"without/{topic}/{seed}", seed, np.array([other != topic for other in topics]))


def without_rows(n: int, rows: Sequence[int] | IntArray, seed: int) -> Retraining:
    """Return the retraining without these rows; the same rows give the same name, whoever ranked them."""
    kept = np.ones(n, dtype=np.bool_)
    kept[np.asarray(rows, dtype=np.int64)] = False
    return Retraining(
        f"removed/{hashlib.sha256(np.packbits(kept).tobytes()).hexdigest()[:12]}/{seed}", seed, kept
    )
