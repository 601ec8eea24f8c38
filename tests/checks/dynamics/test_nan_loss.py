from __future__ import annotations

import math

import pytest

from gradian.checks.audit import Audit
from tests.checks.building import audit_run, eval_log, train_log
from tests.checks.fixtures import judged, only, verdict

ID = "dynamics.nan_loss"
GOOD = train_log([2.0, 1.5, 1.0])


def fires() -> Audit:
    return audit_run(train_log=train_log([2.0, math.nan, 1.0]))


def silent() -> Audit:
    return audit_run(logging_nan_inf_filter=False)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"train_log": train_log([2.0, math.inf])}, "critical"),
        ({"eval_log": eval_log([1.0, math.nan])}, "critical"),
        ({"logging_nan_inf_filter": True}, "skipped"),
        ({"logging_nan_inf_filter": None, "trainer": "transformers"}, "skipped"),
        ({"logging_nan_inf_filter": None, "trainer": "unsloth"}, "passed"),
        ({"logging_nan_inf_filter": True, "train_log": train_log([math.nan])}, "critical"),
        ({"train_log": train_log([None, None])}, "skipped"),
        ({"has_log": False}, "skipped"),
    ],
)
def test_a_filtered_log_is_no_proof(changes: dict[str, object], expected: str) -> None:
    assert verdict(ID, audit_run(**changes)) == expected


def test_the_reason_names_the_setting() -> None:
    (skipped,) = judged(ID, audit_run(logging_nan_inf_filter=True)).skipped
    assert "logging_nan_inf_filter" in skipped.reason


def test_the_first_such_step_is_named() -> None:
    finding = only(
        ID, audit_run(train_log=train_log([2.0, math.nan, math.inf]), eval_log=eval_log([math.nan]))
    )
    assert finding.figures == {"step": 20, "train_rows": 2, "eval_rows": 1}
