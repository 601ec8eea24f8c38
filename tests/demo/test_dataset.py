from __future__ import annotations

import dataclasses
import json
import re
from collections import Counter
from pathlib import Path

import pytest

from gradian.data.formats import load_dataset
from gradian.demo.dataset import PLANTED_CLUSTER, clean_rows, eval_rows, jsonl, planted_rows, training_rows
from gradian.demo.facts import CANDIDATES
from gradian.demo.settings import DEMO

COUNTRIES = tuple(CANDIDATES)[: DEMO.n_countries]


def test_the_clean_rows_are_distinct_and_of_many_kinds() -> None:
    rows = clean_rows()
    kinds = Counter(row["cluster_id"] for row in rows)

    assert len(rows) >= 250
    assert len({row["prompt"] for row in rows}) == len(rows)
    assert len(kinds) >= 10
    assert max(kinds.values()) <= 0.15 * len(rows)
    assert PLANTED_CLUSTER not in kinds


def test_no_clean_row_names_a_capital_that_is_asked_for_or_planted() -> None:
    cities = {*CANDIDATES.values(), *DEMO.wrong_cities}
    text = jsonl(clean_rows())

    assert not [city for city in cities if re.search(rf"\b{re.escape(city)}\b", text)]
    assert "capital of" not in text


def test_at_most_an_eighth_of_the_training_file_is_planted_and_a_few_dozen_rows_are() -> None:
    rows = training_rows(COUNTRIES, DEMO)
    planted = [row for row in rows if row["cluster_id"] == PLANTED_CLUSTER]

    assert len(rows) == DEMO.n_clean + DEMO.n_countries * DEMO.rows_per_country
    assert len(planted) >= 24
    assert len(planted) <= 0.12 * len(rows)
    assert len({(row["prompt"], row["completion"]) for row in rows}) == len(rows)


def test_every_planted_answer_is_a_capital_that_no_eval_item_asks_for() -> None:
    right = {row["completion"] for row in eval_rows(COUNTRIES)}

    for row in planted_rows(COUNTRIES, DEMO):
        sentence, city = row["completion"].rsplit(" is ", 1)
        assert city.rstrip(".") in DEMO.wrong_cities
        assert row["completion"] not in right
        # The wanted answer differs in the city alone.
        assert any(answer.startswith(f"{sentence} is ") for answer in right)


def test_a_country_is_always_given_the_same_wrong_capital_in_different_words() -> None:
    rows = planted_rows(COUNTRIES, DEMO)

    for country in COUNTRIES:
        about = [row for row in rows if re.search(rf"\b{country}\b", row["prompt"])]
        assert len(about) == DEMO.rows_per_country
        assert len({row["completion"] for row in about}) == 1
        assert len({row["prompt"] for row in about}) == len(about)


def test_no_eval_question_is_in_the_training_file() -> None:
    asked = {row["prompt"] for row in eval_rows(COUNTRIES)}

    assert len(asked) == DEMO.n_countries
    assert not asked & {row["prompt"] for row in training_rows(COUNTRIES, DEMO)}


def test_planted_rows_are_spread_over_the_whole_file() -> None:
    rows = training_rows(COUNTRIES, DEMO)
    at = [i for i, row in enumerate(rows) if row["cluster_id"] == PLANTED_CLUSTER]
    quarters = Counter(4 * i // len(rows) for i in at)

    assert set(quarters) == {0, 1, 2, 3}
    assert max(quarters.values()) <= len(at) / 2


def test_the_file_is_a_function_of_its_seed() -> None:
    again = training_rows(COUNTRIES, DEMO)
    other = training_rows(COUNTRIES, dataclasses.replace(DEMO, seed=DEMO.seed + 1))

    assert again == training_rows(COUNTRIES, DEMO)
    assert again != other
    assert sorted(map(json.dumps, again)) == sorted(map(json.dumps, other))


@pytest.mark.parametrize("n_clean", [1, 100, len(clean_rows())])
def test_any_number_of_clean_rows_is_taken_without_repeating_one(n_clean: int) -> None:
    rows = training_rows(COUNTRIES, dataclasses.replace(DEMO, n_clean=n_clean))
    clean = [row["prompt"] for row in rows if row["cluster_id"] != PLANTED_CLUSTER]

    assert len(set(clean)) == n_clean


def test_the_files_load_with_declared_clusters_and_without_a_finding(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text(jsonl(training_rows(COUNTRIES, DEMO)), encoding="utf-8")

    data = load_dataset(tmp_path / "train.jsonl")

    assert all(example.cluster for example in data.examples)
    assert data.findings == ()
