"""When two answers contradict each other; `tests/checks/data/test_conflicting_answers.py` has whole rows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradian.checks.answers import Relation, is_refusal, relation

TEXTS = st.text(st.sampled_from("yes no 12.,A\u2019nt#\n"), max_size=30)


@pytest.mark.parametrize(
    "answer",
    [
        "I'm sorry, but I can't help with that.",
        "I cannot assist with that request",
        "As an AI language model, I cannot do so",
        "I\u2019m unable to help",
        "Unfortunately, I am not able to share that.",
        "I do not know",
    ],
)
def test_answers_that_decline(answer: str) -> None:
    assert is_refusal(answer)


@pytest.mark.parametrize(
    "answer",
    [
        "I am happy to help you",
        "I don't like it",
        "Unfortunately, the road is closed",
        "Sorry to hear that! Try rebooting",
    ],
)
def test_answers_that_only_sound_like_it(answer: str) -> None:
    assert not is_refusal(answer)


@pytest.mark.parametrize(
    ("answer", "other", "expected"),
    [
        ("I cannot help with that.", "I won't do that.", Relation.AGREES),
        ("I cannot help with that.", "Paris", Relation.CONTRADICTS),
        ("Paris.", "paris", Relation.AGREES),
        ("The answer is 4.", "Four apples, so the answer is 4", Relation.AGREES),
        (r"So \boxed{4}", r"Hence \boxed{5}", Relation.CONTRADICTS),
        ("red green blue", "red green yellow", Relation.DIFFERS),
        ("...", "Paris", Relation.DIFFERS),
    ],
)
def test_relations(answer: str, other: str, expected: Relation) -> None:
    assert relation("What is it?", answer, other) is expected


@given(TEXTS, TEXTS, TEXTS)
def test_the_order_of_two_answers_does_not_matter(question: str, answer: str, other: str) -> None:
    assert relation(question, answer, other) is relation(question, other, answer)
    assert relation(question, answer, answer) is Relation.AGREES
