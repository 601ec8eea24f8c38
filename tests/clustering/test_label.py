from __future__ import annotations

from gradian.clustering.label import NO_WORDS, label_clusters


def test_a_label_names_what_sets_the_cluster_apart_and_no_stop_words() -> None:
    texts = ["What is the capital of France? Berlin", "The capital of Spain is Vienna", "What is a stack?"]
    labels = label_clusters(texts, ["0", "0", "1"], 2)
    assert labels == {"0": "capital, berlin", "1": "stack"}


def test_a_word_that_every_cluster_has_ranks_below_its_own_words() -> None:
    texts = ["answer apple", "answer apple", "answer pear", "answer pear"]
    labels = label_clusters(texts, ["a", "a", "b", "b"], 1)
    assert labels == {"a": "apple", "b": "pear"}


def test_one_long_text_does_not_name_its_cluster() -> None:
    texts = ["zebra " * 100, "lemon tree", "lemon pie", "lemon", "other"]
    assert label_clusters(texts, ["a", "a", "a", "a", "b"], 1)["a"] == "lemon"


def test_a_label_is_never_empty() -> None:
    assert label_clusters([""], ["a"], 4) == {"a": NO_WORDS}
    assert label_clusters(["the of"], ["a"], 4) == {"a": "of, the"}
    assert label_clusters(["42"], ["a"], 4) == {"a": "42"}


def test_labels_are_written_in_any_script() -> None:
    texts = ["столица Франции", "東京", "cat"]
    labels = label_clusters(texts, ["a", "b", "c"], 2)
    assert labels == {"a": "столица, франции", "b": "東京", "c": "cat"}


def test_no_rows_have_no_labels() -> None:
    assert label_clusters([], [], 3) == {}
