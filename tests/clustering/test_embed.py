from __future__ import annotations

import sys
from types import ModuleType

import numpy as np
import pytest

from gradian.clustering import embed
from gradian.clustering.embed import embed_texts, example_text, terms, tfidf_vectors
from gradian.config.schema import ClusteringConfig
from gradian.errors import MissingExtraError, ModelError
from gradian.types import Example, Message

TOPICS = ["the cat sat on the mat", "a cat and a mat", "stock prices fell today", "prices of stock rose"]


class LetterCounts:
    """A stand-in for the optional package: what matters is how Gradian calls it."""

    def __init__(self, name: str) -> None:
        if name == "missing/model":
            raise OSError("no such model\nand a long story")

    def encode(self, texts: list[str], *, normalize_embeddings: bool, show_progress_bar: bool) -> np.ndarray:
        assert normalize_embeddings
        assert not show_progress_bar
        counts = np.array([[text.count(c) for c in "abcdefghij"] for text in texts], dtype=np.float32)
        return counts / np.linalg.norm(counts, axis=1, keepdims=True).clip(1e-9)


@pytest.fixture
def sentence_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("sentence_transformers")
    module.SentenceTransformer = LetterCounts  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "sentence_transformers", module)
    monkeypatch.setattr(embed.importlib.util, "find_spec", lambda name: object())


@pytest.fixture
def no_sentence_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embed.importlib.util, "find_spec", lambda name: None)


def test_words_are_casefolded_and_unspaced_scripts_split_into_pairs() -> None:
    assert terms("It's the Straße, No. 7_8!") == ["it's", "the", "strasse", "no", "7", "8"]
    assert terms("我爱北京abc") == ["我爱", "爱北", "北京", "abc"]
    assert terms("猫") == ["猫"]
    assert terms(" \n?!") == []


def test_an_example_is_clustered_by_its_turns_without_the_system_prompt() -> None:
    turns = (Message("system", "be nice"), Message("user", "hi"), Message("assistant", "yo"))
    assert example_text(Example(id="a", position=0, shape="messages", messages=turns)) == "hi\nyo"
    assert example_text(Example(id="b", position=1, shape="text", text="raw")) == "raw"


def test_texts_on_one_topic_lie_closer_than_texts_on_two() -> None:
    vectors = tfidf_vectors(TOPICS, ClusteringConfig(), 0).vectors
    near = vectors @ vectors.T
    assert near[0, 1] > 0.4
    assert near[2, 3] > 0.4
    assert abs(near[:2, 2:]).max() < 0.1


def test_rows_have_unit_length_and_a_text_without_words_is_zero() -> None:
    vectors = tfidf_vectors([*TOPICS, "", "?!"], ClusteringConfig(), 0).vectors
    assert np.linalg.norm(vectors, axis=1) == pytest.approx([1, 1, 1, 1, 0, 0])


def test_the_svd_keeps_the_distances_of_the_full_vectors_when_it_has_room() -> None:
    full = tfidf_vectors(TOPICS, ClusteringConfig(svd_dim=500), 0).vectors
    cut = tfidf_vectors(TOPICS, ClusteringConfig(svd_dim=4), 0).vectors
    assert cut.shape[1] == 4
    assert cut @ cut.T == pytest.approx(full @ full.T, abs=1e-9)


@pytest.mark.parametrize("texts", [["one"], ["", ""], ["the", "and"], ["same text"] * 5, ["猫"]])
def test_awkward_texts_give_finite_vectors(texts: list[str]) -> None:
    vectors = tfidf_vectors(texts, ClusteringConfig(svd_dim=1), 0).vectors
    assert vectors.shape[0] == len(texts)
    assert np.isfinite(vectors).all()


def test_vectors_are_the_same_for_the_same_seed() -> None:
    texts = [f"word{i} word{i % 7} word{i % 3}" for i in range(60)]
    config = ClusteringConfig(svd_dim=5)
    first, second = (tfidf_vectors(texts, config, 9).vectors for _ in range(2))
    assert (first == second).all()


@pytest.mark.usefixtures("no_sentence_transformers")
def test_auto_falls_back_to_words_without_the_extra_and_a_named_backend_does_not() -> None:
    assert embed_texts(TOPICS, ClusteringConfig(), 0).backend == "tfidf"
    with pytest.raises(MissingExtraError, match=r"gradian-ml\[cluster\]"):
        embed_texts(TOPICS, ClusteringConfig(embed_backend="sentence-transformers"), 0)


@pytest.mark.usefixtures("sentence_transformers")
def test_auto_uses_sentence_transformers_when_it_is_installed_and_tfidf_is_still_there_by_name() -> None:
    got = embed_texts(TOPICS, ClusteringConfig(), 0)
    assert (got.backend, got.vectors.dtype, got.notes) == ("sentence-transformers", np.float64, ())
    assert embed_texts(TOPICS, ClusteringConfig(embed_backend="tfidf"), 0).backend == "tfidf"


@pytest.mark.usefixtures("sentence_transformers")
def test_an_embedding_model_that_does_not_load_is_noted_under_auto_and_an_error_by_name() -> None:
    got = embed_texts(TOPICS, ClusteringConfig(embed_model="missing/model"), 0)
    assert got.backend == "tfidf"
    assert "missing/model" in got.notes[0]
    named = ClusteringConfig(embed_model="missing/model", embed_backend="sentence-transformers")
    with pytest.raises(ModelError, match="no such model"):
        embed_texts(TOPICS, named, 0)
