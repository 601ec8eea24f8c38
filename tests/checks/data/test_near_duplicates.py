from __future__ import annotations

from gradian.checks.audit import Audit
from tests.checks.data.rows import audit_rows, chat, healthy, prose, qa
from tests.checks.fixtures import only, verdict

ID = "data.near_duplicates"


def changed(text: str, place: int) -> str:
    words = text.split()
    return " ".join([*words[:place], "otherwise", *words[place + 1 :]])


def fires() -> Audit:
    text = prose(7, 120)
    near = [qa("Tell me.", text), qa("Tell me!", text.upper()), qa("Tell me.", changed(text, 60))]
    return audit_rows([*healthy(200), *near])


def silent() -> Audit:
    rows = healthy(60)
    # Exact copies are counted elsewhere, and one word makes another question of a short one.
    short = [qa("What is the capital of France?", "Paris"), qa("What is the capital of Spain?", "Madrid")]
    return audit_rows([*rows, rows[3], *short])


def test_near_copies_are_found_in_groups_and_the_first_of_each_is_kept() -> None:
    finding = only(ID, fires())
    assert finding.figures["rows"] == [202, 203]
    assert (finding.figures["groups"], finding.figures["largest"]) == (1, 3)


def test_rows_that_are_equal_but_for_another_column_are_near_copies() -> None:
    rows = [{**row, "source": source} for row in healthy(3) for source in ("a", "b")]
    assert only(ID, audit_rows(rows)).figures["count"] == 3


def test_a_long_system_turn_in_common_makes_no_near_copies() -> None:
    rows = [chat(prose(i, 8), prose(900 + i, 8), system=prose(5, 400)) for i in range(50)]
    assert verdict(ID, audit_rows(rows)) == "passed"
