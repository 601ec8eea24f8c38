from __future__ import annotations

from gradian.checks.audit import Audit
from tests.checks.data.rows import audit_rows, healthy
from tests.checks.fixtures import only

ID = "data.tiny_dataset"


def fires() -> Audit:
    return audit_rows(healthy(99))


def silent() -> Audit:
    return audit_rows(healthy(100))


def test_the_number_of_rows_is_told() -> None:
    finding = only(ID, fires())
    assert "99 rows" in finding.title
    assert finding.figures["count"] == 99


def test_copies_do_not_make_a_dataset_larger() -> None:
    finding = only(ID, audit_rows(healthy(60) * 5))
    assert "300 rows, 60 of them different" in finding.title
    assert (finding.figures["count"], finding.figures["different"]) == (300, 60)
