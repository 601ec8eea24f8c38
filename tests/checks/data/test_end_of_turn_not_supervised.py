from __future__ import annotations

from gradian.checks.audit import Audit
from tests.checks.data.rows import audit_rows, case_audit, healthy
from tests.checks.fixtures import only


def fires() -> Audit:
    return case_audit("22-terminator-outside-mask")


def silent() -> Audit:
    return audit_rows(healthy(3), tokens=True)


def test_the_rows_are_named() -> None:
    assert only("data.end_of_turn_not_supervised", fires()).figures["rows"] == [1]
