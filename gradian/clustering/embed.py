"""Training examples as vectors: by meaning where sentence-transformers is installed, else by words."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gradian.config.schema import ClusteringConfig
from gradian.errors import MissingExtraError, ModelError
from gradian.types import Example

_WORD = re.compile(r"[^\W_]+(?:['\u2019][^\W_]+)*")
# Chinese, Japanese and Thai are written without spaces: a run of them is one "word" to a regular expression.
_UNSPACED = re.compile(r"[\u0e00-\u0e7f\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff]+")


@dataclass(frozen=True, eq=False)
class Embedding:
    """Vectors of n texts.

    Attributes:
        vectors: float64 [n, d], each row of unit length, or zero for a text without words.
        backend: `sentence-transformers` or `tfidf`.
        notes: what the reader should know about how they came about.
    """

    vectors: npt.NDArray[np.float64]
    backend: str
    notes: tuple[str, ...] = ()


def example_text(example: Example) -> str:
    """Return what an example is clustered by: its turns but the system's, or its raw text."""
    if not example.messages:
        return example.text or ""
    return "\n".join(message.content for message in example.messages if message.role != "system")


def terms(text: str) -> list[str]:
    """Return the words of a text, casefolded; in scripts written without spaces, pairs of neighbours."""
    found: list[str] = []
    for word in _WORD.findall(text.casefold()):
        end = 0
        for run in _UNSPACED.finditer(word):
            found.append(word[end : run.start()])
            found += _pairs(run.group())
            end = run.end()
        found.append(word[end:])
    return [term for term in found if term]


def embed_texts(texts: Sequence[str], config: ClusteringConfig, seed: int) -> Embedding:
    """Return one vector a text by `clustering.embed_backend`.

    `auto` uses sentence-transformers when it is installed and its model loads, and says so in a note when
    the model does not.

    Raises:
        MissingExtraError: sentence-transformers was asked for by name and is not installed.
        ModelError: it was asked for by name and its model does not load.
    """
    if config.embed_backend == "tfidf":
        return tfidf_vectors(texts, config, seed)
    installed = importlib.util.find_spec("sentence_transformers") is not None
    if config.embed_backend == "sentence-transformers" and not installed:
        raise MissingExtraError(
            "sentence-transformers is not installed",
            where="clustering.embed_backend",
            fix='pip install "gradian-ml[cluster]", or set embed_backend: tfidf',
        )
    if not installed:
        return tfidf_vectors(texts, config, seed)
    try:
        return sentence_vectors(texts, config)
    except ModelError as error:
        if config.embed_backend != "auto":
            raise
        fallback = tfidf_vectors(texts, config, seed)
        return Embedding(fallback.vectors, fallback.backend, (f"{error.problem}: TF-IDF was used instead",))


def sentence_vectors(texts: Sequence[str], config: ClusteringConfig) -> Embedding:
    """Return unit vectors from `clustering.embed_model`.

    Raises:
        ModelError: the model does not load.
    """
    from sentence_transformers import SentenceTransformer

    try:
        model = SentenceTransformer(config.embed_model)
    except (OSError, ValueError, RuntimeError, ImportError) as error:
        raise ModelError(
            f"the embedding model {config.embed_model!r} does not load",
            where="clustering.embed_model",
            found=str(error).split("\n", 1)[0],
            fix="give a local path or a model id that is in the cache, or set embed_backend: tfidf",
        ) from error
    vectors = model.encode(list(texts), normalize_embeddings=True, show_progress_bar=False)
    return Embedding(np.asarray(vectors, dtype=np.float64), "sentence-transformers")


def tfidf_vectors(texts: Sequence[str], config: ClusteringConfig, seed: int) -> Embedding:
    """Return unit vectors from TF-IDF, reduced to at most `svd_dim` dimensions by truncated SVD.

    English stop words are dropped unless nothing else is left. Deterministic for a seed.
    """
    from sklearn.utils.extmath import randomized_svd

    weights = _tfidf(texts, config.max_features)
    n, features = weights.shape
    width = min(config.svd_dim, n, features)
    if width < features and weights.nnz:
        left, singular, _ = randomized_svd(weights, n_components=width, random_state=seed)
        dense = np.asarray(left * singular, dtype=np.float64)
    else:
        dense = np.asarray(weights.toarray(), dtype=np.float64)
    # Below this a direction is rounding error, which scaling to unit length would blow up.
    norms = np.linalg.norm(dense, axis=1, keepdims=True)
    solid = norms > 1e-9
    vectors = np.where(solid, dense / np.where(solid, norms, 1.0), 0.0)
    return Embedding(vectors, "tfidf")


def _tfidf(texts: Sequence[str], max_features: int) -> Any:
    from scipy.sparse import csr_matrix
    from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS, TfidfVectorizer

    words = [terms(text) for text in texts]
    kept = [[word for word in row if word not in ENGLISH_STOP_WORDS] for row in words]
    if not any(kept):
        kept = words
    if not any(kept):
        return csr_matrix((len(texts), 1), dtype=np.float64)
    vectorizer = TfidfVectorizer(analyzer=_as_it_is, max_features=max_features, sublinear_tf=True)
    return vectorizer.fit_transform(kept)


def _as_it_is(words: list[str]) -> list[str]:
    return words


def _pairs(run: str) -> list[str]:
    return [run[i : i + 2] for i in range(len(run) - 1)] or [run]
