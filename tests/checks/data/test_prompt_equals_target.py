from __future__ import annotations

from gradian.checks.audit import Audit
from tests.checks.data.rows import audit_rows, chat, healthy, prose, qa
from tests.checks.fixtures import only, verdict

ID = "data.prompt_equals_target"


def fires() -> Audit:
    return audit_rows([*healthy(30), qa("Say it.", "say  it"), qa("Hi!", "Hi")])


def silent() -> Audit:
    return audit_rows([*healthy(30), qa("Repeat: tea", "tea"), qa("Say it.", "Say it again."), qa("", "")])


def test_echoes_are_named_and_a_copied_column_is_high() -> None:
    assert only(ID, fires()).figures["rows"] == [31, 32]
    assert verdict(ID, fires()) == "medium"
    assert verdict(ID, audit_rows(qa(f"text {i}", f"text {i}") for i in range(20))) == "high"


def test_a_system_turn_can_ask_for_an_echo_but_not_for_a_copied_column() -> None:
    def rows(echoes: int) -> Audit:
        asked = "Correct the text."
        right = [chat(prose(i), prose(i), system=asked) for i in range(echoes)]
        wrong = [chat(prose(i), prose(i + 100), system=asked) for i in range(40 - echoes)]
        return audit_rows([*right, *wrong])

    assert [verdict(ID, rows(echoes)) for echoes in (12, 40)] == ["medium", "high"]
    cased = [chat(prose(i), f"{prose(i).title()}.", system="Add capitals.") for i in range(40)]
    assert verdict(ID, audit_rows(cased)) == "medium"
