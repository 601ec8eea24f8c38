from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradian.clustering.cluster import Clustering
from gradian.clustering.summary import summarise
from gradian.config.schema import ClusteringConfig
from gradian.types import Example


def examples(n: int) -> list[Example]:
    return [Example(id=f"x-{i}", position=i, shape="text", text=str(i)) for i in range(n)]


def clustering(*assignment: str) -> Clustering:
    return Clustering("declared", tuple(assignment), {name: f"label {name}" for name in assignment})


def test_a_share_counts_only_the_negative_scores_of_a_cluster() -> None:
    # As in the published table: a cluster that helps on balance can hold most of the negative influence.
    scores = np.array([-30.0, -9.0, -61.0, 200.0])
    first, second = summarise(
        clustering("0", "0", "100", "100"), examples(4), scores, scores / 10, ClusteringConfig()
    )
    assert (first.id, first.label, first.n, first.sum, first.mean) == ("0", "label 0", 2, -39.0, -19.5)
    assert first.share_of_negative == 0.39
    assert second.share_of_negative == 0.61
    assert (second.sum, second.mean, second.relative_mean) == (139.0, 69.5, 6.95)


def test_a_cluster_without_a_negative_score_has_a_share_of_zero_and_not_of_minus_zero() -> None:
    summaries = summarise(
        clustering("a", "b"), examples(2), np.array([-1.0, 2.0]), np.zeros(2), ClusteringConfig()
    )
    assert [str(summary.share_of_negative) for summary in summaries] == ["1.0", "0.0"]


def test_shares_are_zero_where_nothing_is_negative() -> None:
    summaries = summarise(
        clustering("a", "b"), examples(2), np.array([0.0, 2.0]), np.zeros(2), ClusteringConfig()
    )
    assert [summary.share_of_negative for summary in summaries] == [0.0, 0.0]


def test_the_most_harmful_examples_come_worst_first_and_ties_in_file_order() -> None:
    scores = np.array([-1.0, -5.0, 3.0, -5.0, -2.0])
    config = ClusteringConfig(top_examples_per_cluster=3)
    (only,) = summarise(clustering(*"aaaaa"), examples(5), scores, scores, config)
    assert only.top_examples == (1, 3, 4)


def test_no_excerpts_are_named_when_none_are_asked_for() -> None:
    config = ClusteringConfig(top_examples_per_cluster=0)
    (only,) = summarise(clustering("a"), examples(1), np.ones(1), np.ones(1), config)
    assert only.top_examples == ()


def test_lengths_that_differ_are_refused() -> None:
    with pytest.raises(ValueError, match="3 scores"):
        summarise(clustering("a", "b"), examples(2), np.zeros(3), np.zeros(2), ClusteringConfig())


rows = st.lists(
    st.tuples(st.sampled_from("abc"), st.floats(-1e6, 1e6, allow_subnormal=False)), min_size=1, max_size=25
)


@given(rows)
def test_shares_sum_to_one_or_to_nothing_and_counts_and_sums_add_up(data: list[tuple[str, float]]) -> None:
    scores = np.array([score for _, score in data])
    summaries = summarise(
        clustering(*[name for name, _ in data]), examples(len(data)), scores, scores, ClusteringConfig()
    )
    assert sum(s.share_of_negative for s in summaries) == pytest.approx(1.0 if (scores < 0).any() else 0.0)
    assert sum(s.n for s in summaries) == len(data)
    assert sum(s.sum for s in summaries) == pytest.approx(scores.sum(), abs=1e-6)
    assert [s.sum for s in summaries] == sorted(s.sum for s in summaries)


@given(rows, st.randoms())
def test_the_order_of_the_rows_changes_no_summary(data: list[tuple[str, float]], random: object) -> None:
    order = list(range(len(data)))
    random.shuffle(order)  # type: ignore[attr-defined]
    scores = np.array([score for _, score in data])
    names = [name for name, _ in data]
    dataset = examples(len(data))
    config = ClusteringConfig()
    straight = summarise(clustering(*names), dataset, scores, scores * 2, config)
    shuffled = summarise(
        clustering(*[names[i] for i in order]),
        [dataset[i] for i in order],
        scores[order],
        scores[order] * 2,
        config,
    )
    assert straight == shuffled
