from __future__ import annotations

import dataclasses

from gradian.checks.audit import Audit
from tests.checks.building import healthy_run
from tests.checks.data.rows import audit_rows, case_audit, healthy
from tests.checks.fixtures import only, verdict

ID = "data.prompt_not_token_prefix"


def fires() -> Audit:
    return case_audit("24-boundary-merge")


def silent() -> Audit:
    return audit_rows(healthy(30), tokens=True)


def test_row_one_alone_is_named_with_the_token_that_lies_across() -> None:
    finding = only(ID, fires())
    assert finding.figures["rows"] == [1]
    assert repr(finding.figures["straddling"]) in finding.evidence
    assert finding.figures["straddling"].startswith(":")


def test_trainers_that_render_a_template_do_not_join_plain_text() -> None:
    assert verdict(ID, dataclasses.replace(fires(), run=healthy_run(trainer="axolotl"))) == "passed"
    assert verdict(ID, dataclasses.replace(fires(), run=healthy_run(trainer="trl"))) == "medium"
