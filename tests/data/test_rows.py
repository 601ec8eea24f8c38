from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradian.data.rows import ParsedRow, RemarkKind, alternation_problem, read_row, row_shape
from gradian.types import Message

from .test_ids import JSON_VALUES

NAN = float("nan")


def read(row: Any) -> ParsedRow:
    return read_row(row, 0, "id-0")


def turns(row: Any) -> list[tuple[str, str]]:
    return [(turn.role, turn.content) for turn in read(row).example.messages]


def kinds(row: Any) -> list[RemarkKind]:
    return [remark.kind for remark in read(row).remarks]


@pytest.mark.parametrize(
    ("row", "shape", "expected"),
    [
        (
            {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]},
            "messages",
            [("user", "q"), ("assistant", "a")],
        ),
        (
            {"conversation": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]},
            "messages",
            [("user", "q"), ("assistant", "a")],
        ),
        ({"prompt": "q", "completion": " a"}, "prompt_completion", [("user", "q"), ("assistant", " a")]),
        ({"question": "q", "answer": "a"}, "question_answer", [("user", "q"), ("assistant", "a")]),
        ({"input": "q", "output": "a"}, "input_output", [("user", "q"), ("assistant", "a")]),
        (
            {"instruction": "do", "input": "this", "output": "a"},
            "instruction",
            [("user", "do\n\nthis"), ("assistant", "a")],
        ),
        (
            {"system": "s", "question": "q", "answer": "a"},
            "question_answer",
            [("system", "s"), ("user", "q"), ("assistant", "a")],
        ),
        (
            {
                "prompt": [{"role": "user", "content": "q"}],
                "completion": [{"role": "assistant", "content": "a"}],
            },
            "prompt_completion",
            [("user", "q"), ("assistant", "a")],
        ),
    ],
)
def test_every_documented_shape_becomes_turns(row: Any, shape: str, expected: list[tuple[str, str]]) -> None:
    assert read(row).example.shape == shape
    assert turns(row) == expected
    assert read(row).remarks == ()


def test_a_text_row_keeps_its_text_as_it_is() -> None:
    example = read({"text": " raw\n"}).example
    assert (example.shape, example.text, example.messages) == ("text", " raw\n", ())


@pytest.mark.parametrize("row", [{"foo": 1}, {}, 5, None, ["a"]])
def test_a_row_of_no_known_shape_is_raw_text_with_a_remark(row: Any) -> None:
    parsed = read(row)
    assert parsed.example.shape == "unknown"
    assert parsed.example.text
    assert kinds(row) == [RemarkKind.UNKNOWN_SHAPE]


def test_a_bare_string_is_its_own_raw_text() -> None:
    assert read("hello").example.text == "hello"


@pytest.mark.parametrize("empty", [None, NAN, ""])
def test_null_nan_and_empty_answers_are_no_turn_and_never_text(empty: Any) -> None:
    row = {"instruction": "do", "input": empty, "output": empty}
    assert turns(row) == [("user", "do")]
    assert kinds(row) == [RemarkKind.NO_TARGET]


def test_null_content_of_a_turn_is_empty() -> None:
    row = {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": None}]}
    assert turns(row) == [("user", "x"), ("assistant", "")]


def test_numbers_become_text_with_a_remark_and_the_word_none_is_remarked() -> None:
    assert turns({"prompt": "n", "completion": 7}) == [("user", "n"), ("assistant", "7")]
    assert kinds({"prompt": "n", "completion": 7}) == [RemarkKind.CONVERTED]
    assert kinds({"prompt": "n", "completion": "None"}) == [RemarkKind.NULL_WORD]


def test_text_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "Say "}, {"type": "text", "text": "hi"}, {"type": "text", "text": None}]
    row = {"messages": [{"role": "user", "content": parts}, {"role": "assistant", "content": "hi"}]}
    assert turns(row)[0] == ("user", "Say hi")


@pytest.mark.parametrize(
    ("part", "problem"),
    [
        ({"type": "image", "image": "x"}, "image content not supported"),
        ({"type": "image_url", "image_url": {}}, "image content not supported"),
        ({"type": "input_audio"}, "audio content not supported"),
        ({"type": "refusal"}, "content part of type 'refusal' not supported"),
    ],
)
def test_parts_that_are_no_text_make_the_row_unusable(part: Any, problem: str) -> None:
    parsed = read({"messages": [{"role": "user", "content": [part]}]})
    assert parsed.example.problem == f"{problem} (turn 1)"
    assert [remark.kind for remark in parsed.remarks] == [RemarkKind.UNREADABLE]


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ([], "messages has no turns"),
        ("text", "messages is text, not a list of turns"),
        (["hi"], "turn 1 is text, not an object with role and content"),
        ([{"content": "x"}], "turn 1 has no role"),
    ],
)
def test_malformed_conversations_say_what_is_wrong(value: Any, problem: str) -> None:
    assert read({"messages": value}).example.problem == problem


def test_other_fields_of_a_turn_are_kept_and_nulls_dropped() -> None:
    call = {"function": {"name": "f", "arguments": "{}"}}
    row = {"messages": [{"role": "assistant", "content": None, "tool_calls": [call], "name": None}]}
    assert read(row).example.messages[0] == Message("assistant", "", {"tool_calls": [call]})


def test_a_system_turn_wins_over_the_row_field() -> None:
    row = {
        "system": "row",
        "messages": [{"role": "system", "content": "turn"}, {"role": "user", "content": "q"}],
    }
    assert turns(row)[0] == ("system", "turn")


def test_an_unknown_role_is_kept_and_remarked() -> None:
    row = {"conversations": [{"from": "bing", "value": "q"}, {"from": "gpt", "value": "a"}]}
    assert turns(row)[0] == ("bing", "q")
    assert kinds(row) == [RemarkKind.UNKNOWN_ROLE]


def test_columns_that_arrow_filled_with_null_do_not_decide_the_shape() -> None:
    row = {"messages": None, "prompt": None, "completion": None, "text": "x"}
    assert row_shape(row) == "text"
    assert row_shape({"messages": None}) == "messages"


def test_a_struct_of_lists_is_a_list_of_turns() -> None:
    row = {"messages": {"role": ["user", "assistant"], "content": ["q", "a"]}}
    assert turns(row) == [("user", "q"), ("assistant", "a")]


@pytest.mark.parametrize(
    ("row", "cluster"),
    [
        ({"cluster_id": 3, "cluster": "b"}, "3"),
        ({"cluster": "b"}, "b"),
        ({"cluster": 2.0}, "2"),
        ({"cluster": NAN}, None),
        ({}, None),
    ],
)
def test_a_declared_cluster_is_text(row: dict[str, Any], cluster: str | None) -> None:
    assert read({"text": "x", **row}).example.cluster == cluster


def test_tools_may_be_json_text() -> None:
    row = {"messages": [{"role": "user", "content": "q"}], "tools": '[{"name": "f"}]'}
    assert read(row).example.tools == ({"name": "f"},)


@pytest.mark.parametrize(
    ("roles", "problem"),
    [
        ("user assistant", None),
        ("system user assistant user assistant", None),
        ("user assistant tool assistant", None),
        ("assistant user", "turn 1 is assistant, where user should speak"),
        ("user user assistant", "turn 2 is user, where assistant should speak"),
        ("user", "ends without an assistant turn"),
        ("", "has no turns"),
        ("bing assistant", "turn 1 has the unknown role 'bing'"),
    ],
)
def test_alternation_tells_why_a_trainer_drops_a_row(roles: str, problem: str | None) -> None:
    assert alternation_problem([Message(role, "x") for role in roles.split()]) == problem


@given(
    JSON_VALUES
    | st.dictionaries(st.sampled_from(["messages", "prompt", "completion", "text", "system"]), JSON_VALUES)
)
def test_no_row_ever_raises_or_loses_its_place(row: Any) -> None:
    example = read_row(row, 4, "id-4").example
    assert (example.id, example.position) == ("id-4", 4)
    assert example.problem or example.messages or example.text is not None
