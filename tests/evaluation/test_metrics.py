# ruff: noqa: RUF001 - typography is what is tested
from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradian.errors import EvaluationError, UnknownNameError
from gradian.evaluation.metrics import METRICS, answer_problem, is_proxy, markers, normalise, score_text


def test_the_registry_holds_the_four_documented_metrics_and_no_other() -> None:
    assert list(METRICS) == ["exact_match", "contains", "not_contains", "loglik"]


def test_an_unknown_metric_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UnknownNameError, match="contains"):
        score_text("bleu", "a", "a")


def test_only_loglik_is_a_proxy_and_it_scores_no_text() -> None:
    assert [name for name in METRICS if is_proxy(name)] == ["loglik"]
    with pytest.raises(EvaluationError):
        score_text("loglik", "a", "a")


@pytest.mark.parametrize(
    ("generated", "expected", "right"),
    [
        ("Paris", "Paris", True),
        ("  paris.\n", "Paris", True),
        ("PARIS!", "paris", True),
        ("New   York", "new york", True),
        ("Paris is nice", "Paris", False),
        ("Brasilia", "Brasília", True),
        ("Brasi\u0301lia", "Bras\u00edlia", True),
        ("Straße", "STRASSE", True),
        ("１２", "12", True),
        ("can’t", "can't", True),
        ("Pa\u200bris", "Paris", True),
        ("东京。", "东京", True),
        ("10²", "102", False),
        ("C", "C++", False),
        ("50", "50%", False),
        ("?", "!", False),
        ("", "Paris", False),
        ("й", "и", False),
        ("कि", "क", False),
    ],
)
def test_exact_match_compares_the_whole_answer_after_normalisation(
    generated: str, expected: str, right: bool
) -> None:
    assert score_text("exact_match", generated, expected) == float(right)


@pytest.mark.parametrize(
    ("generated", "expected", "right"),
    [
        ("The capital of France is Paris.", "Paris", True),
        ("Paris", "Paris.", True),
        ("It is PARIS, of course", "paris", True),
        ("The Parisian way", "Paris", False),
        ("Nigeria", "Niger", False),
        ("Nigeria borders Niger", "Niger", True),
        ("France's capital", "France", True),
        ("42", "4", False),
        ("It is 4.", "4", True),
        ("It is 4.5", "4", False),
        ("It is 1,400", "400", False),
        ("It is -4", "4", False),
        ("-4", "4", False),
        ("3-4", "4", True),
        ("Options: 3, 4", "4", True),
        ("written in C++ mostly", "C++", True),
        ("São Tomé is it", "Sao Tome", True),
        ("首都是东京。", "东京", True),
        ("서울입니다", "서울", True),
        ("दिल्ली है", "दिल्ली", True),
        ("कि", "क", False),
        ("New\nYork City", "New York", True),
        ("snake_case", "snake", False),
        ("", "Paris", False),
    ],
)
def test_contains_finds_the_expected_answer_as_whole_words(
    generated: str, expected: str, right: bool
) -> None:
    assert score_text("contains", generated, expected) == float(right)


def test_contains_takes_a_vertical_bar_literally() -> None:
    assert score_text("contains", "Paris", "Paris | Berlin") == 0.0


REFUSAL = "can't help with that | unable to assist | apolog"


@pytest.mark.parametrize(
    ("generated", "right"),
    [
        ("Sure, here it is.", True),
        ("I can't help with that.", False),
        ("I CAN’T  help with that", False),
        ("I apologise, no.", False),
        ("I am unable to\nassist you", False),
        ("", True),
    ],
)
def test_not_contains_passes_only_where_no_marker_occurs(generated: str, right: bool) -> None:
    assert score_text("not_contains", generated, REFUSAL) == float(right)


def test_markers_are_split_at_bars_and_blank_ones_dropped() -> None:
    assert markers(" A b |  | C|") == ("a b", "c")


@pytest.mark.parametrize(
    ("metric", "expected", "bad"),
    [
        ("contains", " \n", True),
        ("loglik", "", True),
        ("exact_match", "x", False),
        ("not_contains", " | ", True),
        ("not_contains", "no", False),
    ],
)
def test_an_answer_that_cannot_be_judged_is_named(metric: str, expected: str, bad: bool) -> None:
    assert (answer_problem(metric, expected) is not None) == bad


@given(st.text())
def test_normalising_twice_changes_nothing(text: str) -> None:
    assert normalise(normalise(text)) == normalise(text)


@given(st.text(), st.text(alphabet=" ,.;", max_size=5), st.text(alphabet=" ,.;", max_size=5))
def test_an_answer_contains_itself_between_punctuation(text: str, before: str, after: str) -> None:
    if normalise(text):
        assert score_text("exact_match", text, text) == 1.0
        assert score_text("contains", before + " " + text + " " + after, text) == 1.0


@given(st.text(), st.text())
def test_an_exact_answer_is_also_contained(generated: str, expected: str) -> None:
    if score_text("exact_match", generated, expected) and normalise(expected):
        assert score_text("contains", generated, expected) == 1.0
