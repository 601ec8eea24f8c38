"""Every check has a fixture that trips it and one that does not, and what it says can be acted on."""

from __future__ import annotations

import json
import re

import pytest

from gradian.checks.registry import Check, all_checks
from tests.checks.fixtures import fixture_result

CHECKS = pytest.mark.parametrize("entry", all_checks(), ids=lambda entry: entry.id)


@CHECKS
def test_the_fixture_with_the_fault_gives_a_finding_with_figures_and_a_fix(entry: Check) -> None:
    result = fixture_result(entry, "fires")
    assert result.findings
    for finding in result.findings:
        assert finding.id == entry.id, finding.evidence
        assert re.search(r"\d|['`]", finding.title), "the title names no figure and no name"
        assert "\n" not in finding.title
        assert finding.evidence
        assert finding.fix
        assert finding.figures
        json.dumps(finding.figures, allow_nan=False)


@CHECKS
def test_the_fixture_without_the_fault_passes_and_is_not_merely_skipped(entry: Check) -> None:
    result = fixture_result(entry, "silent")
    assert result.findings == ()
    assert result.skipped == ()
    assert result.passed == (entry.id,)
