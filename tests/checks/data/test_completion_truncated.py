from __future__ import annotations

import dataclasses

import pytest

from gradian.checks.audit import Audit
from tests.checks.building import healthy_run
from tests.checks.data.rows import audit_rows, healthy, prose, qa
from tests.checks.fixtures import only, verdict

ID = "data.completion_truncated"


def fires() -> Audit:
    return audit_rows([*healthy(799), qa("Tell me.", prose(1, 300))], length=600)


def silent() -> Audit:
    return audit_rows(healthy(40), length=600)


def test_one_row_of_800_is_high_and_all_of_them_critical() -> None:
    one = only(ID, fires())
    assert (one.severity.value, one.figures["rows"], one.figures["share"]) == ("high", [800], 1 / 800)
    every = only(ID, audit_rows(healthy(100), length=48))
    assert every.severity.value == "critical"
    assert "100 of 100 examples (100.0%)" in every.title


@pytest.mark.parametrize(("n", "expected"), [(950, "high"), (1100, "medium")])
def test_a_limit_that_cuts_less_than_a_row_in_a_thousand_is_medium(n: int, expected: str) -> None:
    rows = [*(qa(f"{i}", "y") for i in range(n)), qa("Tell me.", prose(1, 60))]
    assert verdict(ID, audit_rows(rows, length=150)) == expected


def test_rows_that_the_trainer_drops_are_not_truncated() -> None:
    assert verdict(ID, dataclasses.replace(fires(), run=healthy_run(overlong_rows="drop"))) == "passed"


def test_the_fix_names_the_setting_of_the_trainer() -> None:
    audit = dataclasses.replace(
        fires(), run=dataclasses.replace(healthy_run(), trainer="llamafactory", sources={})
    )
    assert only(ID, audit).fix.startswith("Raise cutoff_len to ")
