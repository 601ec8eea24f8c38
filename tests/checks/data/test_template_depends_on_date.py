from __future__ import annotations

from gradian.checks.audit import Audit
from tests.checks.data.rows import audit_rows, case_audit, healthy
from tests.checks.fixtures import only


def fires() -> Audit:
    return case_audit("18-llama3-date")


def silent() -> Audit:
    return audit_rows(healthy(3), tokens=True)


def test_the_date_that_stands_in_for_the_day_is_told() -> None:
    assert "2024-07-26" in only("data.template_depends_on_date", fires()).title
