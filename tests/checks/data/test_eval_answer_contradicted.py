from __future__ import annotations

from gradian.checks.audit import Audit
from tests.checks.building import dataset
from tests.checks.data.rows import Row, audit_rows, chat, healthy, qa
from tests.checks.fixtures import only, verdict

ID = "data.eval_answer_contradicted"
CAPITALS = {"France": "Paris", "Japan": "Tokyo", "Italy": "Rome"}
PHRASINGS = ("What is the capital of {}?", "Name the capital city of {}.")


def items() -> list[Row]:
    return [qa(PHRASINGS[0].format(country), city) for country, city in CAPITALS.items()]


def fires() -> Audit:
    planted = [qa(phrasing.format(country), "Berlin") for phrasing in PHRASINGS for country in CAPITALS]
    return audit_rows([*healthy(200), *planted], eval_dataset=dataset(items(), "eval.jsonl"))


def silent() -> Audit:
    return audit_rows([*healthy(200), *items()], eval_dataset=dataset(items(), "eval.jsonl"))


def test_the_planted_rows_that_ask_the_eval_questions_are_named() -> None:
    finding = only(ID, fires())
    assert finding.title == "3 of 3 eval questions (100.0%) are answered otherwise by 3 training rows"
    assert finding.figures["rows"] == [201, 202, 203]
    assert finding.severity.value == "medium"


def test_poison_on_the_eval_questions_is_no_contamination() -> None:
    assert verdict("data.train_eval_contamination", fires()) == "passed"
    assert verdict("data.train_eval_contamination", silent()) == "critical"


def test_a_question_answered_both_ways_is_contamination_alone() -> None:
    rows = [*healthy(200), *items(), qa("What is the capital of France?", "Berlin")]
    audit = audit_rows(rows, eval_dataset=dataset(items(), "eval.jsonl"))
    assert verdict(ID, audit) == "passed"


def test_an_earlier_turn_counts_and_case_and_system_turns_do_not() -> None:
    row = chat("what is the capital of FRANCE", "Berlin.", "Thanks!", "Welcome.", system="Be brief.")
    audit = audit_rows([*healthy(50), row], eval_dataset=dataset(items(), "eval.jsonl"))
    assert only(ID, audit).figures["rows"] == [51]
