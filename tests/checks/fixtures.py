"""The fixture that trips a check and the one that does not, wherever the check lives.

Every `tests/checks/<category>/test_<fault>.py` has `fires()` and `silent()`, each returning an `Audit`.
"""

from __future__ import annotations

import importlib
from typing import Literal

from gradian.checks.audit import Audit, AuditResult, run_audit
from gradian.checks.registry import Check, all_checks
from gradian.types import Finding

Fixture = Literal["fires", "silent"]


def fixture_result(entry: Check, fixture: Fixture) -> AuditResult:
    """Run one check on one of its fixtures.

    Raises:
        ModuleNotFoundError, AttributeError: the check has no such fixture.
    """
    category, _, fault = entry.id.partition(".")
    module = importlib.import_module(f"tests.checks.{category}.test_{fault}")
    return run_audit(getattr(module, fixture)(), [entry])


def judged(check_id: str, audit: Audit) -> AuditResult:
    """Run one check on one audit."""
    return run_audit(audit, [entry for entry in all_checks() if entry.id == check_id])


def verdict(check_id: str, audit: Audit) -> str:
    """What a check comes to: `passed`, `skipped`, or the severities of its findings, joined by a space."""
    result = judged(check_id, audit)
    if result.findings:
        assert {finding.id for finding in result.findings} == {check_id}, result.findings
        return " ".join(finding.severity.value for finding in result.findings)
    return "skipped" if result.skipped else "passed"


def only(check_id: str, audit: Audit) -> Finding:
    """The one finding that a check makes."""
    (finding,) = judged(check_id, audit).findings
    assert finding.id == check_id, finding.evidence
    return finding
