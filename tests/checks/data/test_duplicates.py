from __future__ import annotations

from gradian.checks.audit import Audit
from tests.checks.data.rows import audit_rows, healthy, qa
from tests.checks.fixtures import only, verdict

ID = "data.duplicates"


def fires() -> Audit:
    rows = healthy(848)
    return audit_rows([*rows, rows[5], rows[5], rows[800]])


def silent() -> Audit:
    # Other case, other spaces: near-copies are another check's business.
    return audit_rows([*healthy(40), qa("Why?", "So."), qa("why?", "So."), qa("Why? ", "So.")])


def test_three_copies_among_851_rows_fire_and_the_copies_are_named() -> None:
    finding = only(ID, fires())
    assert finding.severity.value == "low"
    assert finding.title.startswith("3 rows repeat an earlier row exactly")
    assert finding.figures["rows"] == [849, 850, 851]
    assert [key.rpartition("-")[2] for key in finding.example_ids] == ["848", "849", "850"]
    assert (finding.figures["repeated"], finding.figures["most"]) == (2, 3)


def test_many_copies_weigh_more() -> None:
    assert verdict(ID, audit_rows(healthy(10) * 3)) == "medium"
