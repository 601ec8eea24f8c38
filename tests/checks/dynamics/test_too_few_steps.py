from __future__ import annotations

import pytest

from gradian.checks.audit import Audit
from tests.checks.building import audit_run, falling, train_log
from tests.checks.fixtures import only, verdict

ID = "dynamics.too_few_steps"


def fires() -> Audit:
    return audit_run(train_log=train_log(falling(9)))


def silent() -> Audit:
    return audit_run(train_log=train_log(falling(10)))


@pytest.mark.parametrize("changes", [{"has_log": False}, {"train_log": (), "eval_log": ()}])
def test_without_a_log_there_is_nothing_to_count(changes: dict[str, object]) -> None:
    assert verdict(ID, audit_run(**changes)) == "skipped"


def test_the_fix_gives_fifty_rows() -> None:
    finding = only(ID, fires())
    assert "9 training row(s) for 1000 steps" in finding.title
    assert finding.fix == "Set logging_steps to 20."
