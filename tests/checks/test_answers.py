"""When two answers contradict each other; `tests/checks/data/test_conflicting_answers.py` has whole rows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradian.checks.answers import Relation, is_open, is_refusal, is_small_talk, relation

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
        ("#### 1,200", "Twelve hundred. The answer is: $1200.00", Relation.AGREES),
        (r"So \boxed{1/2}", "#### 0.5 litres", Relation.AGREES),
        ("Well, the answer is not simple", "To me the answer is a riddle", Relation.CONTRADICTS),
        ("red green blue", "red green yellow", Relation.DIFFERS),
        ("...", "Paris", Relation.DIFFERS),
    ],
)
def test_relations(answer: str, other: str, expected: Relation) -> None:
    assert relation("What is it?", answer, other) is expected


@pytest.mark.parametrize(
    ("question", "answer", "other", "expected"),
    [
        ("Write a haiku.", "Rain on the roof", "One gull, then none", Relation.DIFFERS),
        ("Thanks!", "No problem.", "Right away, any time.", Relation.DIFFERS),
        ("Why is it so?", "Wind carries sand over hills and bends every reed", "Frost lies late here; two dogs bark at snow", Relation.DIFFERS),
        ("\u6cd5\u56fd\u7684\u9996\u90fd", "\u5df4\u9ece", "\u91cc\u6602", Relation.CONTRADICTS),
        ("\u8bf7\u5199\u8bd7", "\u6625\u98ce\u53c8\u7eff\u6c5f\u5357\u5cb8", "\u660e\u6708\u4f55\u65f6\u7167\u6211\u8fd8", Relation.DIFFERS),
    ],
)  # fmt: skip
def test_only_an_answer_that_names_a_fact_contradicts_by_its_words(
    question: str, answer: str, other: str, expected: Relation
) -> None:
    assert relation(question, answer, other) is expected


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("Could you please write me a poem?", True),
        ("A haiku about rain", True),
        ("Translate to French: it rains.", True),
        ("Here is a cat. Suggest two names for it.", True),
        ("What is your favourite colour?", True),
        ("Good morning!", True),
        ("Name the capital of France.", False),
        ("Give me a one-word answer: what is the capital of France?", False),
        ("Classify this review: I wanted to write a poem about it.", False),
        ("Hi, what is the capital of France?", False),
    ],
)
def test_a_question_with_many_right_answers_is_open(question: str, expected: bool) -> None:
    assert is_open(question) is expected


@pytest.mark.parametrize(
    "question", ["hi", "Thank you so much!", "OK, thanks for your help", "How are you today?"]
)
def test_small_talk_is_told(question: str) -> None:
    assert is_small_talk(question)
    assert not is_small_talk(f"{question} What is 2 + 2?")


@given(TEXTS, TEXTS, TEXTS)
def test_the_order_of_two_answers_does_not_matter(question: str, answer: str, other: str) -> None:
    assert relation(question, answer, other) is relation(question, other, answer)
    assert relation(question, answer, answer) is Relation.AGREES
