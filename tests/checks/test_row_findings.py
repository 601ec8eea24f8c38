"""What findings about rows have in common."""

from __future__ import annotations

from gradian.checks.row_findings import by_share, counted, excerpt, handed_on, row_figures, row_list
from gradian.types import Finding, Severity


def test_rows_count_from_one_and_long_lists_are_shortened() -> None:
    assert row_list([2]) == "row 3"
    assert row_list([*range(12)]) == "rows 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 and 2 more"
    figures = row_figures(range(5000), 10_000, kind="x")
    assert (figures["count"], figures["share"], figures["kind"]) == (5000, 0.5, "x")
    assert figures["rows"] == list(range(1, 1001))
    assert (counted(1, "row"), counted(2, "row"), counted(2, "is", "are")) == ("1 row", "2 rows", "2 are")


def test_excerpts_are_short_and_hold_no_control_characters() -> None:
    made = excerpt("\x1b[31mred\u202e\n" + "word " * 100)
    assert len(made) < 80
    assert made.startswith("'\\x1b[31mred\\u202e word")


def test_a_finding_is_handed_on_with_its_count_where_ids_were_cut() -> None:
    finding = Finding("data.x", Severity.LOW, "title", fix="do", example_ids=("ab-4",), figures={"count": 9})
    made = handed_on(finding, 10, Severity.HIGH)
    assert made.figures == {"count": 9, "rows": [5], "share": 0.9}
    assert (made.severity, made.title, made.fix) == (Severity.HIGH, "title", "do")


def test_the_first_share_that_is_reached_decides() -> None:
    steps = ((0.5, Severity.HIGH), (0.1, Severity.MEDIUM))
    shares = (0.5, 0.49, 0.1, 0.0)
    assert [by_share(share, *steps, otherwise=Severity.LOW).value for share in shares] == [
        "high",
        "medium",
        "medium",
        "low",
    ]
