from __future__ import annotations

from gradian.checks.audit import Audit
from tests.checks.data.rows import audit_rows, case_audit, healthy
from tests.checks.fixtures import only


def fires() -> Audit:
    return case_audit("11-sharegpt-bad-order", "train.json")


def silent() -> Audit:
    return audit_rows(healthy(3))


def test_the_rows_are_named() -> None:
    assert only("data.unknown_role", fires()).figures["rows"] == [6]
