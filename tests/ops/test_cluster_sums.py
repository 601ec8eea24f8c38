from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradian import _native
from gradian.ops.cluster_sums import cluster_sums

IMPLEMENTATIONS = ["reference", "native"]


def summed(
    scores: torch.Tensor, clusters: torch.Tensor, count: int, impl: str, cuts: list[int]
) -> torch.Tensor:
    totals = torch.zeros(count, scores.shape[1], dtype=torch.float64)
    edges = [0, *sorted(cuts), len(scores)]
    for start, stop in pairwise(edges):
        cluster_sums(totals, scores[start:stop], clusters[start:stop], impl)
    return totals


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@given(st.data(), st.integers(0, 30), st.integers(1, 4), st.integers(1, 6))
def test_rows_are_added_in_order_wherever_the_tiles_end(impl: str, data, n: int, m: int, count: int) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    # Far apart in size: another order of additions rounds otherwise.
    scores = rng.standard_normal((n, m)) * 10.0 ** rng.integers(-12, 12, (n, m))
    clusters = rng.integers(0, count, n)
    want = np.zeros((count, m))
    for row, cluster in zip(scores, clusters, strict=True):
        want[cluster] = want[cluster] + row
    cuts = data.draw(st.lists(st.integers(0, n), max_size=5))
    got = summed(torch.from_numpy(scores), torch.from_numpy(clusters), count, impl, cuts)
    assert got.numpy().tobytes() == want.tobytes()


@pytest.mark.parametrize(("n", "m", "count"), [(1, 1, 1), (301, 1, 4), (67, 129, 5), (40, 64, 80)])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_native_has_the_references_bits_with_any_number_of_threads(
    n: int, m: int, count: int, threads: int
) -> None:
    generator = torch.Generator().manual_seed(n)
    scores = torch.randn(m, n, generator=generator, dtype=torch.float64).exp().T
    clusters = torch.randint(0, count, (2 * n,), generator=generator)[::2]
    want = summed(scores, clusters, count, "reference", [])
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert torch.equal(summed(scores, clusters, count, "native", [n // 2]), want)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("totals", "scores", "clusters", "complaint"),
    [
        (torch.zeros(2, 3), torch.zeros(4, 3).double(), torch.zeros(4).long(), "totals"),
        (torch.zeros(3, 2).double().T, torch.zeros(4, 3).double(), torch.zeros(4).long(), "totals"),
        (torch.zeros(2, 3).double(), torch.zeros(4, 3), torch.zeros(4).long(), "scores"),
        (torch.zeros(2, 3).double(), torch.zeros(4, 2).double(), torch.zeros(4).long(), "scores"),
        (torch.zeros(2, 3).double(), torch.zeros(4, 3).double(), torch.zeros(3).long(), "clusters"),
        (torch.zeros(2, 3).double(), torch.zeros(4, 3).double(), torch.zeros(4), "clusters"),
        (torch.zeros(2, 3).double(), torch.zeros(1, 3).double(), torch.tensor([2]), "below 2"),
        (torch.zeros(2, 3).double(), torch.zeros(1, 3).double(), torch.tensor([-1]), "below 2"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(totals, scores, clusters, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        cluster_sums(totals, scores, clusters)


def test_the_extension_refuses_arrays_that_do_not_fit() -> None:
    good = {
        "totals": np.zeros((2, 3)),
        "tile": np.zeros((4, 3)),
        "clusters": np.zeros(4, np.int64),
        "threads": 1,
    }
    _native.add_cluster_sums(**good)
    for name, bad, complaint in [
        ("totals", np.zeros((2, 2)), "one width"),
        ("tile", np.zeros((3, 3)), "needs one cluster"),
        ("clusters", np.zeros((4, 1), np.int64), "needs one cluster"),
        ("clusters", np.array([0, 1, 2, 0]), "out of range"),
        ("clusters", np.array([0, 1, -1, 0]), "out of range"),
    ]:
        with pytest.raises(ValueError, match=complaint):
            _native.add_cluster_sums(**{**good, name: bad})
