from __future__ import annotations

from dataclasses import FrozenInstanceError

import numpy as np
import pytest

from gradian.types import BlockSpec, EncodedExample, Example, Message, Severity


def test_severities_rank_from_critical_to_info() -> None:
    names = [severity.value for severity in sorted(Severity, key=lambda severity: severity.rank)]
    assert names == ["critical", "high", "medium", "low", "info"]
    assert Severity("high").rank == 1


def chat(*turns: tuple[str, str]) -> Example:
    return Example("id-0", 0, "messages", tuple(Message(role, text) for role, text in turns))


def test_a_chat_rows_target_is_its_final_assistant_turn_and_its_prompt_the_turn_before() -> None:
    example = chat(("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d"))
    assert (example.prompt, example.target) == ("c", "d")


def test_a_chat_row_that_ends_with_the_user_has_no_target() -> None:
    assert chat(("user", "a")).target == ""
    assert chat(("assistant", "b"), ("user", "a")).target == ""


def test_a_lone_assistant_turn_is_a_target_without_a_prompt() -> None:
    example = chat(("assistant", "b"))
    assert (example.prompt, example.target) == ("", "b")


def test_a_text_rows_target_is_its_text() -> None:
    example = Example("id-0", 0, "text", text="once")
    assert (example.prompt, example.target) == ("", "once")


def test_an_example_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        chat(("user", "a")).position = 2  # type: ignore[misc]


def test_an_encoded_example_counts_its_tokens_and_its_targets() -> None:
    encoded = EncodedExample("id-0", 0, np.arange(4), np.array([False, True, False, True]))
    assert len(encoded) == 4
    assert encoded.n_supervised == 2


def test_a_blocks_size_joins_its_parts() -> None:
    assert BlockSpec("layer", ((2, 3), (5, 2)), offset=0).size == 16
    assert BlockSpec("layer", ((64,),), offset=16).size == 64
