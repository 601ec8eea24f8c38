from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from experiments.fidelity.dataset import DatasetSettings, bench_data, question_example
from experiments.fidelity.scoring import bm25, mean_hidden_states, query_items, with_contrasts
from gradian.config import Config
from gradian.model.load import load_model


def test_bm25_is_the_formula_worked_by_hand() -> None:
    documents = ["the capital of France", "the currency of France is the euro", "birds can fly"]
    scores = bm25(["France capital", "nothing"], documents)
    rare_capital, rare_france = math.log(1 + 2.5 / 1.5), math.log(1 + 1.5 / 2.5)
    mean = (4 + 7 + 3) / 3

    def once(length: int) -> float:
        return 2.5 / (1 + 1.5 * (0.25 + 0.75 * length / mean))

    np.testing.assert_allclose(
        scores,
        [[(rare_capital + rare_france) * once(4), rare_france * once(7), 0.0], [0.0, 0.0, 0.0]],
    )


def test_a_word_that_is_asked_or_said_twice_counts_more() -> None:
    documents = ["red red blue", "red blue blue"]
    once, twice = bm25(["red", "red red"], documents)
    assert once[0] > once[1] > 0
    np.testing.assert_allclose(twice, 2 * once)


def test_the_contrasts_are_right_less_wrong_answers() -> None:
    data = bench_data(DatasetSettings(n_countries=2))
    by_answer = np.arange(len(data.questions) + len(data.marked), dtype=np.float64)[:, None]
    values = with_contrasts(by_answer, data)
    assert len(values) == len(data.query_topics)
    assert (values[: len(data.questions)] == by_answer[: len(data.questions)]).all()
    for place, question in enumerate(data.marked):
        assert values[len(data.questions) + place] == question - (len(data.questions) + place)


@pytest.fixture(scope="module")
def loaded(tiny_model_dir: Path, tiny_adapter_dir: Path) -> object:
    return load_model(
        Config.model_validate({"base_model": str(tiny_model_dir), "adapter_path": str(tiny_adapter_dir)})
    )


def test_mean_hidden_states_do_not_depend_on_padding(loaded: object) -> None:
    data = bench_data(DatasetSettings(n_countries=2))
    encoder = loaded.encoder(512)  # type: ignore[attr-defined]
    rows = [
        encoder.encode_answer(question_example(question, question.expected, i))
        for i, question in enumerate(data.questions[:9])
    ]
    together = mean_hidden_states(loaded, rows)  # type: ignore[arg-type]
    alone = np.concatenate([mean_hidden_states(loaded, [row]) for row in rows])  # type: ignore[arg-type]
    np.testing.assert_allclose(together, alone, atol=1e-5)
    assert len({len(row) for row in rows}) > 1


def test_what_is_said_are_the_tokens_of_the_wrong_answer(loaded: object) -> None:
    data = bench_data(DatasetSettings(n_countries=2))
    encoder = loaded.encoder(512)  # type: ignore[attr-defined]
    plain, said = query_items(data, encoder)
    assert len(plain) == len(data.questions)
    assert len(said) == len(data.marked)
    for i, item in zip(data.marked, said, strict=True):
        wrong = encoder.encode_answer(question_example(data.questions[i], data.questions[i].marker or "", i))
        given = encoder.encode_continuation(item.example, item.said or ())
        assert given.input_ids.tolist() == wrong.input_ids.tolist()
        assert (given.supervised == wrong.supervised).all()
