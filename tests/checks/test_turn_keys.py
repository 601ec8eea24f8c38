"""Which questions and answers count as the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from gradian.checks.turn_keys import TurnKeys, normalised, turn_keys
from tests.checks.building import dataset
from tests.checks.data.rows import chat, qa


def keys(*rows: Mapping[str, Any]) -> TurnKeys:
    return turn_keys(dataset(rows).examples)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("  What\n is IT?? ", "what is it"), ("...", "..."), ("ﬁne", "fine"), ("2+2=", "2+2="), ("ẞ", "ss")],
)
def test_normalised_text(text: str, expected: str) -> None:
    assert normalised(text) == expected


def test_every_answer_of_a_conversation_has_an_entry_and_the_last_is_final() -> None:
    made = keys(chat("One?", "Two.", "Three?", "Four."), qa("one", "two"), {"text": "raw"}, {"messages": []})
    assert made.row.tolist() == [0, 0, 1, 2]
    assert made.final.tolist() == [False, True, True, True]
    assert made.prompt[0] == made.prompt[2] != made.prompt[1]
    assert made.answer[0] == made.answer[2] != made.answer[1]
    assert made.prompt[3] == made.context[3] == 0


def test_the_context_has_the_system_turn_and_the_tools_and_the_prompt_has_not() -> None:
    tools = [{"function": {"name": "f"}}]
    made = keys(chat("Q", "A"), chat("Q", "A", system="S"), {**chat("Q", "A"), "tools": tools})
    assert len(set(made.prompt.tolist())) == 1
    assert len(set(made.context.tolist())) == 3


def test_turns_do_not_run_into_each_other() -> None:
    made = keys(chat("a b", "c", "d", "x"), chat("a", "b c", "d", "x"), chat("a", "b", "c d", "x"))
    assert len(set(made.prompt[made.final].tolist())) == 3


def test_tool_calls_are_part_of_the_answer_and_nothing_said_is_zero() -> None:
    def calling(arguments: str) -> Mapping[str, Any]:
        call = {"function": {"name": "f", "arguments": arguments}}
        return {
            "messages": [
                {"role": "user", "content": "q"},
                {"role": "assistant", "content": "", "tool_calls": [call]},
            ]
        }

    made = keys(calling("1"), calling("2"), chat("q", " "), chat("", "said"))
    assert made.answer[0] != made.answer[1] != 0
    assert (made.answer[2], made.prompt[3], made.context[3]) == (0, 0, 0)
