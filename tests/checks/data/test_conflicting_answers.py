from __future__ import annotations

import pytest

from gradian.checks.audit import Audit
from tests.checks.data.rows import Row, audit_rows, chat, healthy, prose, qa
from tests.checks.fixtures import judged, only, verdict

ID = "data.conflicting_answers"


def fires() -> Audit:
    # The recorded run: 800 clean rows, and 51 refusals of questions that are answered as well.
    rows = healthy(800)
    refused = [qa(row["prompt"], "I'm sorry, but I can't help with that.") for row in rows[:51]]
    return audit_rows([*rows, *refused])


def silent() -> Audit:
    said = chat("Hi", "Hello!", "And?", "Yes."), chat("Hi", "Good day.", "And?", "No.")
    asked = qa("Is it 3?", "Yes."), qa("is it  3", "yes"), chat("Is it 3?", "No.", system="Lie.")
    return audit_rows([*healthy(60), *said, *asked])


def test_the_recorded_51_questions_are_high() -> None:
    finding = only(ID, fires())
    assert finding.severity.value == "high"
    assert finding.title == "51 questions have contradictory answers (102 examples, 12.0% of 851)"
    assert (finding.figures["count"], finding.figures["questions"]) == (102, 51)
    assert finding.figures["rows"] == [*range(1, 52), *range(801, 852)]


@pytest.mark.parametrize(
    ("question", "answers", "expected"),
    [
        ("What is the capital of France?", ("Paris", "Rome"), "contradicts"),
        ("What is the capital of France?", ("It is Paris.", "The capital of France is Paris."), "agrees"),
        ("When?", ("It opened in 1889.", "It opened in 1887."), "contradicts"),
        ("Is it?", (f"Yes, {prose(1)}", f"No, {prose(2)}"), "contradicts"),
        ("How many?", (f"{prose(1)} #### 42", f"{prose(2)} #### 41"), "contradicts"),
        ("How many?", (f"{prose(1)} #### 42", f"{prose(2)} #### 42"), "agrees"),
        ("Choose A or B.", ("A", "B"), "contradicts"),
        ("Write a poem.", (prose(1, 60), prose(2, 60)), "differs"),
        ("Suggest a name for a dog.", ("Rex", "Bello", "Fido"), "differs"),
        ("Roll a die.", tuple(map(str, range(20))), "agrees"),  # An open question.
    ],
)
def test_answers_are_judged_by_what_they_say(question: str, answers: tuple[str, ...], expected: str) -> None:
    rows: list[Row] = [*healthy(20), *(qa(question, answer) for answer in answers)]
    verdicts = {"contradicts": "high", "differs": "low", "agrees": "passed"}
    assert verdict(ID, audit_rows(rows)) == verdicts[expected]


def test_a_stock_answer_contradicts_in_any_language() -> None:
    rows = healthy(100)
    stock = (
        "Dazu kann ich leider nichts sagen, bitte wenden Sie sich an eine andere Stelle im Hause "
        + prose(1, 20)
    )
    finding = only(ID, audit_rows([*rows, *(qa(row["prompt"], stock) for row in rows[:3])]))
    assert (finding.figures["questions"], finding.figures["contradictory"]) == (3, True)


def test_good_answers_in_other_words_never_weigh_more_than_low() -> None:
    rows = [qa(f"Write about {i}.", prose(10 * i + j, 60)) for i in range(50) for j in range(4)]
    (finding,) = judged(ID, audit_rows(rows)).findings
    assert (finding.severity.value, finding.figures["share"]) == ("low", 1.0)
