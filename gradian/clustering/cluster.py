"""Groups of training examples, which the report speaks in.

Rows are clustered in the order of their text, each distinct text once with its count as weight where the
method takes weights, so a group depends on what the rows say and not on where they stand in the file.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gradian.clustering.embed import Embedding, embed_texts, example_text
from gradian.clustering.label import label_clusters
from gradian.config.schema import ClusteringConfig
from gradian.types import Example

UNDECLARED = "undeclared"
NOISE = "noise"
EVERYTHING = "all"

_Labels = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Clustering:
    """Which cluster each example is in.

    Attributes:
        method: what was done: `declared`, `kmeans`, `hdbscan` or `none`, never `auto`.
        assignment: cluster id of each of the n examples.
        labels: label of each cluster id, never empty.
        notes: what the reader should know about how the groups came about.
    """

    method: str
    assignment: tuple[str, ...]
    labels: Mapping[str, str]
    notes: tuple[str, ...] = ()


def cluster_examples(examples: Sequence[Example], config: ClusteringConfig, seed: int) -> Clustering:
    """Group the examples by `clustering.method`.

    - `declared`: the row's own cluster; rows without one form the cluster `undeclared`, with a note.
    - `kmeans`: k-means on the embeddings; fewer clusters where there are fewer distinct texts.
    - `hdbscan`: HDBSCAN on the embeddings; what it leaves out forms the cluster `noise`.
    - `none`: one cluster, `all`.
    - `auto`: `declared` when every row has a cluster; else `hdbscan` when the embeddings come from
      sentence-transformers and it finds at least two clusters; else `kmeans`. HDBSCAN is not tried on TF-IDF
      vectors, where density says little.

    Found clusters are numbered from 0, largest first.

    Args:
        examples: the n training examples.
        config: method, embeddings, cluster sizes, terms in a label.
        seed: seed of k-means and of the SVD.

    Raises:
        MissingExtraError: sentence-transformers was asked for and is not installed.
        ModelError: the embedding model was asked for and does not load.
    """
    texts = [example_text(example) for example in examples]
    declared = bool(examples) and all(example.cluster is not None for example in examples)
    if config.method == "declared" or (config.method == "auto" and declared):
        return _declared(examples, texts, config)
    if config.method == "none" or not examples:
        return Clustering("none", (EVERYTHING,) * len(examples), {EVERYTHING: "all examples"})

    counts = Counter(texts)
    distinct = sorted(counts)
    weights = np.array([counts[text] for text in distinct], dtype=np.int64)
    embedding = embed_texts(distinct, config, seed)
    method, found = _group(embedding, weights, config, seed)
    group_of = dict(zip(distinct, _names(found, weights), strict=True))
    assignment = tuple(group_of[text] for text in texts)
    labels = dict(label_clusters(texts, assignment, config.label_top_terms))
    if NOISE in labels:
        labels[NOISE] = f"outside every group: {labels[NOISE]}"
    return Clustering(method, assignment, labels, embedding.notes)


def kmeans_labels(vectors: npt.NDArray[np.float64], weights: _Labels, n_clusters: int, seed: int) -> _Labels:
    """Return the k-means cluster of each of the m vectors, int64 [m]; `n_clusters` is capped by m."""
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    model = KMeans(n_clusters=min(n_clusters, vectors.shape[0]), n_init=10, random_state=seed)
    with warnings.catch_warnings():
        # Distinct texts may have equal vectors, so fewer clusters than asked for; that is no trouble here.
        warnings.simplefilter("ignore", ConvergenceWarning)
        return np.asarray(model.fit(vectors, sample_weight=weights).labels_, dtype=np.int64)


def hdbscan_labels(vectors: npt.NDArray[np.float64], weights: _Labels, min_cluster_size: int) -> _Labels:
    """Return the HDBSCAN cluster of each of the m vectors, int64 [m]; -1 is noise.

    HDBSCAN takes no weights, so each vector stands in as often as its weight says.
    """
    from sklearn.cluster import HDBSCAN

    rows = np.repeat(np.arange(vectors.shape[0]), weights)
    if rows.shape[0] < min_cluster_size:
        return np.full(vectors.shape[0], -1, dtype=np.int64)
    if vectors.shape[0] == 1:
        return np.zeros(1, dtype=np.int64)
    # Repeated rows lie at distance zero: the density 1/distance is infinite, which HDBSCAN handles.
    with np.errstate(divide="ignore", invalid="ignore"):
        labels = HDBSCAN(min_cluster_size=min_cluster_size, copy=True).fit(vectors[rows]).labels_
    first = np.concatenate([[0], np.cumsum(weights)[:-1]])
    return np.asarray(labels[first], dtype=np.int64)


def _group(
    embedding: Embedding, weights: _Labels, config: ClusteringConfig, seed: int
) -> tuple[str, _Labels]:
    by_density = config.method == "hdbscan" or (
        config.method == "auto" and embedding.backend == "sentence-transformers"
    )
    if by_density:
        found = hdbscan_labels(embedding.vectors, weights, config.min_cluster_size)
        if config.method == "hdbscan" or found.max() >= 1:
            return "hdbscan", found
    return "kmeans", kmeans_labels(embedding.vectors, weights, config.n_clusters, seed)


def _names(found: _Labels, weights: _Labels) -> list[str]:
    # Largest first, then by the first text, so that names do not depend on the method's own numbering.
    def rank_key(group: int) -> tuple[int, int]:
        members = found == group
        return -int(weights[members].sum()), int(np.argmax(members))

    groups = sorted(set(found[found >= 0].tolist()), key=rank_key)
    name = {group: str(rank) for rank, group in enumerate(groups)} | {-1: NOISE}
    return [name[group] for group in found.tolist()]


def _declared(examples: Sequence[Example], texts: Sequence[str], config: ClusteringConfig) -> Clustering:
    assignment = tuple(UNDECLARED if example.cluster is None else example.cluster for example in examples)
    described = label_clusters(texts, assignment, config.label_top_terms)
    # A name is its own label; a bare number is described by its terms.
    labels = {
        cluster: cluster if any(char.isalpha() for char in cluster) else label
        for cluster, label in described.items()
    }
    missing = sum(example.cluster is None for example in examples)
    notes = (
        (f"{missing} of {len(examples)} rows declare no cluster: they form the cluster {UNDECLARED!r}",)
        if missing
        else ()
    )
    return Clustering("declared", assignment, labels, notes)
