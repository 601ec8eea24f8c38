from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradian.engines import EngineSettings
from gradian.errors import GradientError, UnknownNameError
from gradian.query.score_summary import join_summaries, score_summaries, summarise_scores
from gradian.query.scorer import QueryGradients, score_index
from gradian.types import Scores, ScoreSummary
from tests.engines.stores import ArrayStore, random_store
from tests.query.test_scorer import queries_for
from tests.store import building

ENGINES = ("datainf", "graddot", "tracin")
SETTINGS = EngineSettings(learning_rate=0.3)


def assert_same_bits(got: ScoreSummary, want: ScoreSummary) -> None:
    assert (got.engine, got.query_ids, got.clusters) == (want.engine, want.query_ids, want.clusters)
    for name in ("lowest", "lowest_rows", "highest", "highest_rows", "cluster_sums"):
        assert getattr(got, name).tobytes() == getattr(want, name).tobytes(), name
        assert getattr(got, name).shape == getattr(want, name).shape


def clusters_of(n: int) -> list[str]:
    return [f"c{row * row % 3}" for row in range(n)]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize(
    ("n", "sizes", "chunk", "m", "k"),
    [(1, [1], 1, 1, 3), (23, [4, 7, 3], 5, 3, 4), (301, [5, 2], 300, 1, 2), (40, [6], 40, 5, 60)],
)
def test_it_is_the_summary_of_the_whole_scores(
    engine: str, normalize: bool, n: int, sizes: list[int], chunk: int, m: int, k: int
) -> None:
    store = random_store(n, n, sizes, chunk_size=chunk)
    queries = queries_for(store, m=m)
    whole = score_index(store, queries, [engine], SETTINGS, normalize_query=normalize)[engine]
    want = summarise_scores(whole, k, clusters_of(n))
    got = score_summaries(store, queries, engine, SETTINGS, k, clusters_of(n), normalize_query=normalize)
    assert_same_bits(got, want)


def test_the_summary_of_scores_holds_their_ends_and_their_cluster_sums() -> None:
    values = np.array([[3.0, -1.0, 2.0, -1.0, 8.0], [0.0, 1.0, 1.0, -4.0, 0.5]])
    got = summarise_scores(Scores("datainf", values, ("a", "b")), 2, ["x", "y", "y", "x", "x"])
    assert got.lowest.tolist() == [[-1, -1], [-4, 0]]
    assert got.lowest_rows.tolist() == [[1, 3], [3, 0]]
    assert got.highest.tolist() == [[8, 3], [1, 1]]
    assert got.highest_rows.tolist() == [[4, 0], [1, 2]]
    assert got.clusters == ("x", "y")
    assert got.cluster_sums.tolist() == [[10, 1], [-3.5, 2]]


@settings(max_examples=40)
@given(st.integers(0, 2**16), st.integers(1, 14), st.integers(1, 14))
def test_it_does_not_depend_on_where_chunks_end(seed: int, n: int, chunk: int) -> None:
    # Whole numbers: every sum is exact, so that another chunk size cannot round otherwise.
    rng = np.random.default_rng(seed)
    arrays = [rng.integers(-3, 4, (n, d)).astype(np.float32) for d in (4, 3)]
    queries = QueryGradients(
        ("p", "q"), tuple(torch.from_numpy(rng.integers(-3, 4, (2, d)).astype(np.float32)) for d in (4, 3))
    )
    split = score_summaries(ArrayStore(arrays, chunk), queries, "graddot", SETTINGS, 3, clusters_of(n))
    whole = score_summaries(ArrayStore(arrays, n), queries, "graddot", SETTINGS, 3, clusters_of(n))
    assert_same_bits(split, whole)


def test_an_index_on_disk_is_summarised_like_one_in_memory(tmp_path: Path) -> None:
    reader = building.build(tmp_path)
    store = ArrayStore(building.gradients(), chunk_size=building.CHUNK)
    queries = queries_for(store)
    # The norms in the index are the writer's own.
    store.sq_norms = reader.sq_norms
    assert_same_bits(
        score_summaries(reader, queries, "datainf", SETTINGS, 4, clusters_of(reader.n)),
        score_summaries(store, queries, "datainf", SETTINGS, 4, clusters_of(reader.n)),
    )


@pytest.mark.parametrize(("engine", "reads"), [("datainf", 2), ("graddot", 1), ("tracin", 1)])
def test_each_block_is_read_once_for_the_transform_and_once_for_the_scores(engine: str, reads: int) -> None:
    store = random_store(0, 9, [4, 7, 2])
    ticks: list[int] = []
    score_summaries(store, queries_for(store), engine, SETTINGS, 2, progress=ticks.append)
    assert store.reads == reads * len(store.blocks)
    assert sum(ticks) == len(store.blocks)
    assert min(ticks) > 0


def test_summaries_of_groups_of_queries_join_to_that_of_all() -> None:
    scores = Scores("graddot", np.random.default_rng(0).standard_normal((5, 11)), tuple("abcde"))
    parts = [
        summarise_scores(Scores("graddot", scores.values[rows], scores.query_ids[rows]), 3, clusters_of(11))
        for rows in (slice(0, 2), slice(2, 3), slice(3, 5))
    ]
    assert_same_bits(join_summaries(parts), summarise_scores(scores, 3, clusters_of(11)))
    other = summarise_scores(scores, 2, clusters_of(11))
    for wrong in ([], [parts[0], other]):
        with pytest.raises(ValueError, match="must share"):
            join_summaries(wrong)


def test_what_does_not_fit_is_refused() -> None:
    store = random_store(0, 7, [4])
    queries = queries_for(store)
    with pytest.raises(UnknownNameError):
        score_summaries(store, queries, "ekfac", SETTINGS, 2)
    with pytest.raises(GradientError, match="blocks"):
        score_summaries(store, queries_for(random_store(0, 3, [5])), "graddot", SETTINGS, 2)
    with pytest.raises(ValueError, match="at least 1"):
        score_summaries(store, queries, "graddot", SETTINGS, 0)
    with pytest.raises(ValueError, match="6 rows have a cluster, the index has 7"):
        score_summaries(store, queries, "graddot", SETTINGS, 2, clusters_of(6))


def test_a_score_that_is_not_finite_is_named_by_its_row_in_the_dataset() -> None:
    store = random_store(0, 13, [4])
    store.arrays[0][11, 2] = np.inf
    with pytest.raises(GradientError, match="engine graddot, query q0, row 11"):
        score_summaries(store, queries_for(store, m=1), "graddot", SETTINGS, 2)
