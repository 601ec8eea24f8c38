from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradian.clustering import cluster
from gradian.clustering.cluster import NOISE, UNDECLARED, cluster_examples, hdbscan_labels, kmeans_labels
from gradian.clustering.embed import Embedding
from gradian.config.schema import ClusteringConfig
from gradian.types import Example


def rows(texts: list[str], clusters: list[str | None] | None = None) -> list[Example]:
    names = clusters or [None] * len(texts)
    return [
        Example(id=f"x-{i}", position=i, shape="text", text=text, cluster=name)
        for i, (text, name) in enumerate(zip(texts, names, strict=True))
    ]


TWO_TOPICS = [f"the capital city of country {i}" for i in range(12)] + [
    f"python function returns list {i}" for i in range(8)
]


def test_declared_uses_the_rows_own_clusters_and_labels_numbers_by_their_words() -> None:
    got = cluster_examples(
        rows(["berlin", "berlin", "recipe"], ["0", "0", "cooking"]), ClusteringConfig(method="declared"), 0
    )
    assert got.method == "declared"
    assert got.assignment == ("0", "0", "cooking")
    assert got.labels == {"0": "berlin", "cooking": "cooking"}
    assert got.notes == ()


def test_declared_puts_rows_without_a_cluster_apart_and_says_so() -> None:
    got = cluster_examples(rows(["a", "b", "c"], ["0", None, None]), ClusteringConfig(method="declared"), 0)
    assert got.assignment == ("0", UNDECLARED, UNDECLARED)
    assert got.labels[UNDECLARED]
    assert "2 of 3 rows" in got.notes[0]


def test_auto_is_declared_only_when_every_row_has_a_cluster() -> None:
    config = ClusteringConfig(embed_backend="tfidf")
    assert cluster_examples(rows(["a", "b"], ["0", "1"]), config, 0).method == "declared"
    assert cluster_examples(rows(["a", "b"], ["0", None]), config, 0).method == "kmeans"


def test_none_is_one_cluster() -> None:
    got = cluster_examples(rows(["a", "b"], ["0", "1"]), ClusteringConfig(method="none"), 0)
    assert got.assignment == ("all", "all")
    assert got.labels == {"all": "all examples"}


def test_kmeans_separates_two_topics_and_numbers_them_by_size() -> None:
    config = ClusteringConfig(method="kmeans", n_clusters=2, embed_backend="tfidf")
    got = cluster_examples(rows(TWO_TOPICS), config, 0)
    assert got.assignment == ("0",) * 12 + ("1",) * 8
    assert "capital" in got.labels["0"]
    assert "python" in got.labels["1"]


def test_hdbscan_finds_repeated_texts_as_groups() -> None:
    texts = ["capital city france paris"] * 6 + ["python list sort key"] * 7
    got = cluster_examples(rows(texts), ClusteringConfig(method="hdbscan", embed_backend="tfidf"), 0)
    assert got.method == "hdbscan"
    assert got.assignment == ("1",) * 6 + ("0",) * 7


@pytest.mark.parametrize("method", ["kmeans", "hdbscan", "auto", "none", "declared"])
@pytest.mark.parametrize(
    "texts", [["one row"], ["same"] * 30, ["", "", ""], ["a b", "b a", "a b"], ["x", "", "y"]]
)
def test_awkward_datasets_cluster_without_complaint(method: str, texts: list[str]) -> None:
    config = ClusteringConfig.model_validate({"method": method, "embed_backend": "tfidf"})
    got = cluster_examples(rows(texts), config, 0)
    assert len(got.assignment) == len(texts)
    assert set(got.assignment) == set(got.labels)
    assert all(got.labels.values())


def test_an_empty_dataset_has_no_clusters() -> None:
    assert cluster_examples([], ClusteringConfig(), 0).assignment == ()


def sentence_vectors(vectors: np.ndarray) -> object:
    return lambda texts, config, seed: Embedding(vectors[: len(texts)], "sentence-transformers", ("note",))


def blobs(*sizes: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    return np.concatenate([rng.normal(10.0 * k, 0.1, size=(n, 3)) for k, n in enumerate(sizes)])


def test_auto_takes_hdbscan_on_sentence_embeddings_when_it_finds_two_groups(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cluster, "embed_texts", sentence_vectors(blobs(9, 7)))
    got = cluster_examples(rows([f"{i:02}" for i in range(16)]), ClusteringConfig(), 0)
    assert (got.method, got.notes) == ("hdbscan", ("note",))
    assert got.assignment == ("0",) * 9 + ("1",) * 7


def test_what_hdbscan_leaves_out_is_called_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = np.concatenate([blobs(9, 7), [[500.0, 0.0, 0.0]]])
    monkeypatch.setattr(cluster, "embed_texts", sentence_vectors(vectors))
    texts = [f"{i:02}" for i in range(16)] + ["stray"]
    got = cluster_examples(rows(texts), ClusteringConfig(method="hdbscan"), 0)
    assert got.assignment[-1] == NOISE
    assert NOISE not in got.assignment[:-1]
    assert got.labels[NOISE] == "outside every group: stray"


def test_auto_takes_kmeans_when_hdbscan_finds_no_two_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "embed_texts", sentence_vectors(blobs(3)))
    assert cluster_examples(rows(["a", "b", "c"]), ClusteringConfig(), 0).method == "kmeans"


def test_more_clusters_than_vectors_are_capped() -> None:
    labels = kmeans_labels(np.eye(3), np.ones(3, dtype=np.int64), 8, 0)
    assert sorted(labels) == [0, 1, 2]


def test_hdbscan_counts_repeated_texts_towards_the_smallest_cluster() -> None:
    vectors = np.array([[0.0, 0.0], [0.01, 0.0], [5.0, 5.0], [5.01, 5.0]])
    thin = hdbscan_labels(vectors, np.array([1, 1, 1, 1]), 5)
    thick = hdbscan_labels(vectors, np.array([3, 3, 3, 3]), 5)
    assert (thin == -1).all()
    assert thick[0] == thick[1] != thick[2] == thick[3]


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.sampled_from(TWO_TOPICS), min_size=1, max_size=25),
    st.integers(0, 2**31),
    st.sampled_from(["kmeans", "hdbscan"]),
)
def test_a_rows_cluster_depends_on_its_text_and_not_on_its_place(
    texts: list[str], shuffle_seed: int, method: str
) -> None:
    config = ClusteringConfig.model_validate({"method": method, "n_clusters": 3, "embed_backend": "tfidf"})
    order = list(range(len(texts)))
    random.Random(shuffle_seed).shuffle(order)
    straight = cluster_examples(rows(texts), config, 0)
    shuffled = cluster_examples(rows([texts[i] for i in order]), config, 0)
    assert tuple(straight.assignment[i] for i in order) == shuffled.assignment
    assert straight.labels == shuffled.labels
