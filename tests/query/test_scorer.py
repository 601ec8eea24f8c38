from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from gradian.engines import EngineSettings
from gradian.errors import GradientError, UnknownNameError
from gradian.query.scorer import (
    QueryGradients,
    gradient_norms,
    predicted_loss_delta_if_removed,
    rank_correlation,
    relative_influence,
    score_index,
)
from tests.engines.stores import ArrayStore, random_store


def queries_for(store: ArrayStore, m: int = 2, seed: int = 9) -> QueryGradients:
    generator = torch.Generator().manual_seed(seed)
    return QueryGradients(
        tuple(f"q{i}" for i in range(m)),
        tuple(torch.randn(m, spec.size, generator=generator) for spec in store.blocks),
    )


def test_blocks_are_summed() -> None:
    store = random_store(0, 9, [4, 7, 3])
    queries = queries_for(store)
    got = score_index(store, queries, ["graddot"], EngineSettings())["graddot"]
    g = np.concatenate(store.arrays, axis=1).astype(np.float64)
    q = torch.cat(queries.blocks, dim=1).double().numpy()
    np.testing.assert_allclose(got.values, q @ g.T, rtol=1e-5, atol=1e-5)
    assert got.query_ids == ("q0", "q1")


def test_a_primary_and_a_cross_check_share_one_map_of_the_store() -> None:
    store = random_store(0, 9, [4, 7])
    queries = queries_for(store)
    alone = {
        name: score_index(store, queries, [name], EngineSettings())[name].values
        for name in ("datainf", "graddot")
    }
    store.reads = 0
    both = score_index(store, queries, ["graddot", "datainf"], EngineSettings())
    assert store.reads == len(store.blocks)
    for name, values in alone.items():
        assert np.array_equal(both[name].values, values)


def test_many_queries_at_once_equal_one_at_a_time() -> None:
    store = random_store(4, 13, [17, 5])
    queries = queries_for(store, m=6)
    together = score_index(store, queries, ["datainf"], EngineSettings())["datainf"].values
    for i in range(6):
        one = QueryGradients((f"q{i}",), tuple(b[i : i + 1] for b in queries.blocks))
        alone = score_index(store, one, ["datainf"], EngineSettings())["datainf"].values
        np.testing.assert_allclose(together[i], alone[0], rtol=1e-4, atol=1e-4)


def test_the_score_of_a_mean_query_is_the_mean_of_the_scores() -> None:
    store = random_store(4, 13, [17, 5])
    queries = queries_for(store, m=4)
    mean = QueryGradients(("mean",), tuple(b.mean(0, keepdim=True) for b in queries.blocks))
    each = score_index(store, queries, ["datainf"], EngineSettings())["datainf"].values
    averaged = score_index(store, mean, ["datainf"], EngineSettings())["datainf"].values
    np.testing.assert_allclose(averaged[0], each.mean(0), rtol=1e-4, atol=1e-4)


def test_a_normalised_query_changes_curvature_free_engines_only() -> None:
    store = random_store(0, 9, [4, 7])
    queries = queries_for(store)
    plain = score_index(store, queries, ["datainf", "graddot"], EngineSettings())
    unit = score_index(store, queries, ["datainf", "graddot"], EngineSettings(), normalize_query=True)
    norms = torch.cat(queries.blocks, dim=1).double().norm(dim=1).numpy()
    np.testing.assert_allclose(unit["graddot"].values, plain["graddot"].values / norms[:, None], rtol=1e-6)
    assert np.array_equal(unit["datainf"].values, plain["datainf"].values)


@pytest.mark.parametrize("engine", ["datainf", "graddot", "tracin"])
def test_a_row_along_the_query_is_positive_and_its_opposite_negative(engine: str) -> None:
    store = random_store(1, 8, [30])
    query = torch.randn(1, 30, generator=torch.Generator().manual_seed(5))
    store = ArrayStore([np.concatenate([store.arrays[0], query.numpy(), -query.numpy()])])
    scores = score_index(store, QueryGradients(("q",), (query,)), [engine], EngineSettings())[engine].values[
        0
    ]
    assert scores[8] > 0 > scores[9]
    assert np.argmax(scores) == 8
    assert np.argmin(scores) == 9


def test_queries_over_other_blocks_are_refused() -> None:
    store = random_store(0, 3, [4])
    with pytest.raises(GradientError, match="blocks"):
        score_index(store, queries_for(random_store(0, 3, [5])), ["graddot"], EngineSettings())


def test_an_unknown_engine_is_refused() -> None:
    store = random_store(0, 3, [4])
    with pytest.raises(UnknownNameError):
        score_index(store, queries_for(store), ["ekfac"], EngineSettings())


def test_a_score_that_is_not_finite_is_named() -> None:
    store = random_store(0, 3, [4])
    store.arrays[0][1, 2] = np.inf
    with pytest.raises(GradientError, match="query q0, row 1"):
        score_index(store, queries_for(store, m=1), ["graddot"], EngineSettings())


def test_relative_influence_divides_by_the_whole_gradient_norm() -> None:
    store = random_store(0, 5, [4, 7])
    store.arrays[0][3] = 0
    store.arrays[1][3] = 0
    store = ArrayStore(store.arrays)
    norms = gradient_norms(store)
    np.testing.assert_allclose(norms, np.linalg.norm(np.concatenate(store.arrays, 1).astype(float), axis=1))
    values = np.arange(10.0).reshape(2, 5)
    relative = relative_influence(values, norms)
    assert (relative[:, 3] == 0).all()
    np.testing.assert_allclose(relative[:, :3] * norms[:3], values[:, :3])


def test_the_prediction_is_the_score_over_the_number_of_examples() -> None:
    assert predicted_loss_delta_if_removed(np.array([-633.0]), 851)[0] == pytest.approx(-0.7438, abs=1e-4)


@given(arrays(np.float64, st.integers(2, 30), elements=st.integers(-5, 5)), st.integers(0, 2**16))
def test_rank_correlation_is_scipys_spearman(first: np.ndarray, seed: int) -> None:
    second = np.random.default_rng(seed).integers(-5, 5, len(first)).astype(float)
    if np.ptp(first) == 0 or np.ptp(second) == 0:
        assert rank_correlation(first, second) is None
    else:
        assert rank_correlation(first, second) == pytest.approx(
            scipy.stats.spearmanr(first, second).statistic, abs=1e-12
        )
