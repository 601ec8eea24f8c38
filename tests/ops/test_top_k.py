from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradian import _native
from gradian.ops.top_k import TopK, top_k

IMPLEMENTATIONS = ["reference", "native"]
# Few distinct values, so that ties are the rule; zeros of both signs rank as equal.
VALUES = st.sampled_from([-torch.inf, -2.5, -1.0, -0.0, 0.0, 1.0, 2.0**-1060, 3.25, torch.inf])


def folded(scores: torch.Tensor, k: int, cuts: list[int], impl: str) -> TopK:
    best = TopK.empty(scores.shape[1], k)
    edges = [0, *sorted(min(cut, len(scores)) for cut in cuts), len(scores)]
    for start, stop in pairwise(edges):
        top_k(best, scores[start:stop], impl)
    return best


def assert_same_bits(got: TopK, want: TopK) -> None:
    assert got.seen == want.seen
    for name in ("lowest", "lowest_rows", "highest", "highest_rows"):
        assert getattr(got, name).numpy().tobytes() == getattr(want, name).numpy().tobytes()


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@given(data=st.data(), n=st.integers(1, 40), m=st.integers(1, 5), k=st.integers(1, 12))
def test_the_ends_are_those_of_a_stable_sort_wherever_the_tiles_end(
    impl, data, n: int, m: int, k: int
) -> None:
    scores = torch.tensor(
        data.draw(st.lists(st.lists(VALUES, min_size=m, max_size=m), min_size=n, max_size=n)),
        dtype=torch.float64,
    )
    best = folded(scores, k, data.draw(st.lists(st.integers(0, n), max_size=6)), impl)
    width = min(n, k)
    assert (best.seen, best.width) == (n, width)
    for sign, values, rows in ((1, best.lowest, best.lowest_rows), (-1, best.highest, best.highest_rows)):
        order = np.argsort(sign * scores.numpy(), axis=0, kind="stable")[:width].T
        assert np.array_equal(rows[:, :width].numpy(), order)
        kept = np.take_along_axis(scores.numpy().T, order, axis=1)
        assert values[:, :width].numpy().tobytes() == kept.tobytes()


@pytest.mark.parametrize(("n", "m", "k"), [(1, 1, 1), (700, 1, 7), (130, 63, 3), (97, 64, 20), (211, 131, 1)])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_native_has_the_references_bits_with_any_number_of_threads(
    n: int, m: int, k: int, threads: int
) -> None:
    scores = torch.randn(n, m, generator=torch.Generator().manual_seed(n + m), dtype=torch.float64)
    scores[n // 2 :] = scores[: n - n // 2].clone()
    want = folded(scores, k, [], "reference")
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        # Scores as a view with strides, as a transposed matrix is.
        assert_same_bits(folded(scores.T.contiguous().T, k, [n // 3, n // 3 + 1], "native"), want)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("row", [0, 6])
def test_a_score_that_is_not_a_number_is_refused(impl: str, row: int) -> None:
    scores = torch.zeros(7, 3, dtype=torch.float64)
    scores[row, 2] = torch.nan
    with pytest.raises(ValueError, match="not a number"):
        top_k(TopK.empty(3, 2), scores, impl)


@pytest.mark.parametrize(
    "scores", [torch.zeros(4, 3), torch.zeros(4, 2, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)]
)
def test_scores_of_another_shape_or_dtype_are_refused(scores: torch.Tensor) -> None:
    with pytest.raises(ValueError, match=r"float64 \[b, 3\]"):
        top_k(TopK.empty(3, 2), scores)


@pytest.mark.parametrize(("queries", "k"), [(0, 1), (1, 0)])
def test_a_ranking_needs_a_query_and_a_place(queries: int, k: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        TopK.empty(queries, k)


def test_the_extension_refuses_lists_and_scores_that_do_not_fit() -> None:
    good = {
        "lowest": np.zeros((3, 2)),
        "lowest_rows": np.zeros((3, 2), np.int64),
        "highest": np.zeros((3, 2)),
        "highest_rows": np.zeros((3, 2), np.int64),
        "seen": 5,
        "tile": np.zeros((4, 3)),
        "threads": 1,
    }
    _native.fold_top_k(**good)
    for name, bad, complaint in [
        ("lowest", np.zeros((3, 1)), "every list"),
        ("lowest", np.zeros((3, 0)), "every list"),
        ("highest_rows", np.zeros((2, 2), np.int64), "every list"),
        ("highest", np.zeros(6), "every list"),
        ("tile", np.zeros((4, 4)), "every list"),
        ("tile", np.zeros(12), "matrices"),
        ("seen", 2**63 - 4, "63 bits"),
    ]:
        with pytest.raises(ValueError, match=complaint):
            _native.fold_top_k(**{**good, name: bad})
    for name, wrong in [("tile", np.zeros((3, 4)).T), ("lowest", np.zeros((3, 2), np.float32))]:
        with pytest.raises(TypeError):
            _native.fold_top_k(**{**good, name: wrong})
