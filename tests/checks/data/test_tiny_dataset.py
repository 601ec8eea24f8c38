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
