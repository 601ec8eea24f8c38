from __future__ import annotations

from pathlib import Path

import pytest

from gradian.config import Config
from gradian.demo.facts import CANDIDATES, PHRASINGS, QUESTION, probe_capitals, wrong_answers
from gradian.demo.settings import DEMO
from gradian.errors import ModelError
from gradian.evaluation.generate import Generation
from gradian.model.load import LoadedModel, load_model
from gradian.types import Example


@pytest.fixture(scope="module")
def loaded(tiny_model_dir: Path) -> LoadedModel:
    return load_model(Config(base_model=str(tiny_model_dir)), adapter=False)


def answering(right: set[str]) -> object:
    """Stands in for the model's answers: right for these countries."""

    def generate_answers(
        loaded: object, encoder: object, examples: list[Example], *rest: object
    ) -> list[Generation]:
        return [
            Generation(
                f"It is {example.target}." if example.id in right else "I do not know.", (), hit_cap=False
            )
            for example in examples
        ]

    return generate_answers


def probe(loaded: LoadedModel) -> tuple[str, ...]:
    config = Config.model_validate(DEMO.config())
    return probe_capitals(loaded, config.evaluation, 256, 0, DEMO.n_countries)


def test_a_model_that_knows_no_capital_is_refused(loaded: LoadedModel) -> None:
    with pytest.raises(ModelError, match="too few capitals") as caught:
        probe(loaded)
    assert f"0 of {len(CANDIDATES)}" in str(caught.value)


def test_the_first_candidates_that_it_knows_are_taken(
    loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = list(CANDIDATES)
    unknown = {names[0], names[5]}
    monkeypatch.setattr("gradian.evaluation.generate.generate_answers", answering(set(names) - unknown))

    assert probe(loaded) == tuple(name for name in names if name not in unknown)[: DEMO.n_countries]


def test_the_training_phrasings_are_not_the_eval_question() -> None:
    assert QUESTION not in PHRASINGS
    assert len(set(PHRASINGS)) == len(PHRASINGS) >= DEMO.rows_per_country


def test_wrong_answers_are_spread_evenly_over_the_cities() -> None:
    wrong = wrong_answers(tuple(CANDIDATES)[:16], DEMO.wrong_cities)
    counts = [list(wrong.values()).count(city) for city in DEMO.wrong_cities]

    assert max(counts) - min(counts) <= 1


def test_a_city_that_an_eval_item_asks_for_is_refused() -> None:
    with pytest.raises(ValueError, match="Paris"):
        wrong_answers(["France", "Japan"], ["Vienna", "Paris"])


def test_no_candidate_has_a_planted_city_as_its_capital() -> None:
    assert not set(CANDIDATES.values()) & set(DEMO.wrong_cities)
