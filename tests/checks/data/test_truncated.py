from __future__ import annotations

import dataclasses

from gradian.checks.audit import Audit
from tests.checks.building import healthy_run
from tests.checks.data.rows import audit_rows, healthy, prose, qa
from tests.checks.fixtures import only, verdict

ID = "data.truncated"


def fires() -> Audit:
    return audit_rows([*healthy(40), qa(prose(1, 600), "Yes.")], length=1000)


def silent() -> Audit:
    return audit_rows(healthy(40), length=1000)


def test_cut_rows_are_counted_whether_or_not_the_target_is_reached() -> None:
    finding = only(ID, fires())
    assert finding.severity.value == "low"
    assert finding.figures["rows"] == [41]
    assert "max_seq_length=1000" in finding.title
    assert str(finding.figures["longest"]) in finding.fix
    assert verdict(ID, audit_rows(healthy(40), length=200)) == "medium"


def test_rows_that_the_trainer_drops_are_not_cut() -> None:
    assert verdict(ID, dataclasses.replace(fires(), run=healthy_run(overlong_rows="drop"))) == "passed"
