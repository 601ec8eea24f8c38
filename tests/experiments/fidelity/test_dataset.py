from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest

from experiments.fidelity.dataset import CLEAN_TOPICS, SENTIMENT, DatasetSettings, bench_data

DATA = bench_data(DatasetSettings())


def asked_and_answered(row: dict[str, object]) -> tuple[str, str]:
    turns = row["messages"]
    assert isinstance(turns, list)
    return turns[-2]["content"], turns[-1]["content"]


def test_no_question_is_trained_on() -> None:
    prompts = {asked_and_answered(row)[0] for row in DATA.rows}
    assert not prompts & {question.prompt for question in DATA.questions}


def test_every_topic_has_rows_and_questions() -> None:
    rows, asked = Counter(DATA.topics), Counter(question.topic for question in DATA.questions)
    assert set(rows) == set(asked)
    assert all(rows[topic] == 16 and asked[topic] == 3 for topic in CLEAN_TOPICS)


def test_planted_rows_say_what_the_questions_mark_as_wrong() -> None:
    capitals = [question for question in DATA.questions if question.topic == "capitals"]
    wrong = {question.marker for question in capitals}
    planted = [asked_and_answered(row)[1] for row, bad in zip(DATA.rows, DATA.planted, strict=True) if bad]
    assert set(planted) == wrong
    assert not set(planted) & {question.expected for question in capitals}


def test_flipped_rows_are_as_many_of_either_kind_and_no_other_review_has_their_label() -> None:
    labels = Counter()
    right = {"positive": set(), "negative": set()}
    for row, topic, flipped in zip(DATA.rows, DATA.topics, DATA.flipped, strict=True):
        if topic == SENTIMENT:
            prompt, answer = asked_and_answered(row)
            label = "positive" if "positive" in answer else "negative"
            labels[label, bool(flipped)] += 1
            right[label if not flipped else {"positive": "negative"}.get(label, "positive")].add(prompt)
    assert labels == {(label, bad): count for label in right for bad, count in ((True, 4), (False, 8))}
    assert not right["positive"] & right["negative"]


def test_the_same_settings_give_the_same_bytes_and_a_seed_another_order() -> None:
    assert bench_data(DatasetSettings()).jsonl() == DATA.jsonl()
    other = bench_data(DatasetSettings(seed=8))
    assert other.jsonl() != DATA.jsonl()
    assert not np.array_equal(other.planted, DATA.planted)
    assert all(json.loads(line)["cluster_id"] for line in DATA.jsonl().splitlines())


def test_more_reviews_than_there_are_is_an_error() -> None:
    with pytest.raises(ValueError, match="more than 16 reviews"):
        bench_data(DatasetSettings(n_reviews=32))
