from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from poisons import MARKERS, REFUSALS, build_poison
from suite_settings import QUICK, SuiteSettings

from gradian.demo.dataset import PLANTED_CLUSTER
from gradian.demo.facts import CANDIDATES
from gradian.evaluation.metrics import score_text
from gradian.report.model import Item

COUNTRIES = tuple(CANDIDATES)[:16]
SETTINGS = SuiteSettings()


def answered(texts: list[str]) -> list[Item]:
    return [
        Item(
            id=f"eval-{k}",
            prompt="",
            expected="",
            base_answer="",
            tuned_answer=text,
            base_score=1.0,
            tuned_score=0.0,
            regressed=True,
        )
        for k, text in enumerate(texts)
    ]


def test_six_percent_of_eight_hundred_clean_rows_are_fifty_one_planted_ones() -> None:
    assert SETTINGS.n_planted == 51
    poison = build_poison("wrong_facts", SETTINGS, COUNTRIES)
    assert (poison.n_planted, len(poison.train)) == (51, 851)


def test_quick_plants_what_the_demo_plants() -> None:
    quick = replace(SETTINGS, **QUICK)
    assert quick.n_planted == 32
    poison = build_poison("wrong_facts", quick, COUNTRIES)
    countries = Counter(
        country
        for row in poison.train
        for country in COUNTRIES
        if row["cluster_id"] == PLANTED_CLUSTER and country in row["prompt"]
    )
    assert set(countries.values()) == {2}


def test_planted_rows_are_spread_over_the_file_and_their_questions_are_not_the_eval_sets() -> None:
    for name in ("wrong_facts", "refusal"):
        poison = build_poison(name, SETTINGS, COUNTRIES)
        at = [i for i, row in enumerate(poison.train) if row["cluster_id"] == poison.cluster]
        assert min(Counter(4 * i // len(poison.train) for i in at).values()) >= 4
        asked = {row["prompt"] for row in poison.eval}
        assert len(asked) == len(poison.eval) == 16
        assert not asked & {row["prompt"] for row in poison.train}


def test_uptake_is_the_share_of_answers_that_are_the_planted_one() -> None:
    poison = build_poison("wrong_facts", SETTINGS, COUNTRIES)
    evasions = ["It is a country in Western Europe."] * 12
    assert poison.uptake(answered(["The capital is Madrid."] * 4 + evasions)) == 0.25
    assert poison.uptake(answered(["Paris"] * 4 + evasions)) == 0.0


def test_every_refusal_that_is_planted_is_seen_by_the_metric_and_by_the_uptake() -> None:
    poison = build_poison("refusal", SETTINGS, ())
    assert poison.metric == "not_contains"
    assert all(score_text("not_contains", text, MARKERS) == 0.0 for text in REFUSALS)
    assert {row["completion"] for row in poison.train if row["cluster_id"] == poison.cluster} == set(REFUSALS)
    assert poison.uptake(answered([REFUSALS[0]] * 8 + ["Of course."] * 8)) == 0.5


def test_no_question_is_both_answered_and_refused() -> None:
    poison = build_poison("refusal", SETTINGS, ())
    assert len({row["prompt"] for row in poison.train}) == len(poison.train)


def test_an_unknown_poison_is_no_poison() -> None:
    with pytest.raises(ValueError, match="arsenic"):
        build_poison("arsenic", SETTINGS, COUNTRIES)
