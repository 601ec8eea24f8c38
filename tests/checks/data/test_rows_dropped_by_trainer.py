from __future__ import annotations

import dataclasses

from gradian.checks.audit import Audit
from tests.checks.building import healthy_run
from tests.checks.data.rows import audit_rows, case_audit, chat, healthy
from tests.checks.fixtures import only, verdict

ID = "data.rows_dropped_by_trainer"


def fires() -> Audit:
    return case_audit("11-sharegpt-bad-order", "train.json")


def silent() -> Audit:
    return case_audit("09-sharegpt-basic", "train.json")


def test_the_dropped_rows_are_listed_with_their_reasons() -> None:
    finding = only(ID, fires())
    assert "drop 5 of 6 rows" in finding.title
    assert finding.figures["rows"] == [1, 2, 3, 4, 6]
    assert "row 4: has no turns" in finding.evidence
    assert "unknown role 'bing'" in finding.evidence


def test_the_run_decides_where_there_is_one() -> None:
    assert verdict(ID, dataclasses.replace(fires(), run=healthy_run(trainer="trl"))) == "passed"
    rows = [chat("Hi", "Hello."), chat("Hi"), *healthy(1)]
    assert verdict(ID, audit_rows(rows)) == "passed"
    assert only(ID, audit_rows(rows, run=healthy_run(trainer="llamafactory"))).figures["rows"] == [2]
