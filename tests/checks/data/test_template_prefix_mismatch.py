from __future__ import annotations

from gradian.checks.audit import Audit
from tests.checks.data.rows import audit_rows, case_audit, chat, healthy
from tests.checks.fixtures import only

ID = "data.template_prefix_mismatch"


def fires() -> Audit:
    return case_audit("17-qwen3-think-stripped")


def silent() -> Audit:
    return audit_rows([*healthy(3), chat("Hi", "<think>x</think>Hello.", "And?", "Yes.")], tokens=True)


def test_the_row_is_named() -> None:
    assert only(ID, fires()).figures["rows"] == [1]
