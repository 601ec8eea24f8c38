from __future__ import annotations

import pytest

from gradian.checks.audit import Audit
from gradian.checks.data.empty_or_degenerate_targets import is_degenerate
from tests.checks.data.rows import audit_rows, healthy, qa
from tests.checks.fixtures import only, verdict

ID = "data.empty_or_degenerate_targets"


def fires() -> Audit:
    return audit_rows([*healthy(50), qa("a", ""), qa("b", "..."), qa("c", "ha ha ha ha ha"), qa("d", "7")])


def silent() -> Audit:
    # Short answers are no fault where all are short.
    return audit_rows(qa(f"{i} + {i} = ?", str(2 * i % 10)) for i in range(120))


def test_kinds_are_counted_apart() -> None:
    finding = only(ID, fires())
    assert finding.figures["rows"] == [51, 52, 53, 54]
    assert [finding.figures[kind] for kind in ("empty", "degenerate", "short")] == [1, 2, 1]
    assert finding.severity.value == "high"


def test_a_few_empty_answers_among_many_rows_are_low() -> None:
    assert verdict(ID, audit_rows([*healthy(400), qa("a", " ")])) == "low"


def test_a_turn_that_calls_a_tool_is_not_empty() -> None:
    call = {"function": {"name": "sh", "arguments": "{}"}}
    row = {
        "messages": [
            {"role": "user", "content": "ls"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
        ]
    }
    assert verdict(ID, audit_rows([*healthy(5), row])) == "passed"


def test_a_word_that_the_row_offers_as_an_answer_says_something() -> None:
    rows = [qa(f"Who is named? Say none if nobody is. {i}", "None") for i in range(20)]
    assert verdict(ID, audit_rows(rows)) == "passed"
    assert verdict(ID, audit_rows(qa(f"Who is named? {i}", "None") for i in range(20))) == "high"


@pytest.mark.parametrize("text", ["...", "N/A", "- - -", "TODO", "aaaaaaa", "no no no no no"])
def test_texts_without_content(text: str) -> None:
    assert is_degenerate(text)


@pytest.mark.parametrize(
    "text", ["7", "B", "11111", "\U0001f600", "=", "\u65e5\u672c", "no no", "None of these"]
)
def test_short_texts_that_say_something(text: str) -> None:
    assert not is_degenerate(text)


@pytest.mark.parametrize(
    ("roles", "expected"),
    [
        ("ua", "passed"),
        ("uau", "passed"),
        ("uat", "passed"),
        ("u", "high"),
        ("uaua", "high"),
        ("uauau", "high"),
    ],
)
def test_a_row_may_go_on_after_its_answer(roles: str, expected: str) -> None:
    names = {"u": "user", "a": "assistant", "t": "tool"}
    said = [{"role": names[role], "content": f"A sentence of turn {i}."} for i, role in enumerate(roles)]
    if roles.count("a") == 2:
        said[3]["content"] = ""
    assert verdict(ID, audit_rows([*healthy(10), {"messages": said}])) == expected


@pytest.mark.parametrize("target", ["\u200b\u200b", "\u2060", "\x00", "\ufe0f", "\u200e ... \u200f"])
def test_what_nobody_can_see_is_no_answer(target: str) -> None:
    assert is_degenerate(target)
    assert not is_degenerate(f"\u2764{target}")


def test_a_book_of_one_word_says_nothing_and_is_read_once() -> None:
    # Comparing such answers word by word with all of the text would take minutes.
    rows = [qa(f"{i}", f"word{i} " * 50_000) for i in range(10)]
    assert only(ID, audit_rows(rows)).figures["degenerate"] == 10
