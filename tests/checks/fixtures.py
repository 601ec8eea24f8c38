"""The fixture that trips a check and the one that does not, wherever the check lives.

Every `tests/checks/<category>/test_<fault>.py` has `fires()` and `silent()`, each returning an `Audit`.
"""

from __future__ import annotations

import importlib
from typing import Literal

from gradian.checks.audit import AuditResult, run_audit
from gradian.checks.registry import Check

Fixture = Literal["fires", "silent"]


def fixture_result(entry: Check, fixture: Fixture) -> AuditResult:
    """Run one check on one of its fixtures.

    Raises:
        ModuleNotFoundError, AttributeError: the check has no such fixture.
    """
    category, _, fault = entry.id.partition(".")
    module = importlib.import_module(f"tests.checks.{category}.test_{fault}")
    return run_audit(getattr(module, fixture)(), [entry])
