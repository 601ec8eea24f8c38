from __future__ import annotations

import math

import pytest

from gradian.checks.audit import Audit
from gradian.runs.artifact import LogRow
from tests.checks.building import audit_run, train_log
from tests.checks.fixtures import only, verdict

ID = "dynamics.nan_grad_norm"
# Case 31 as its reader gives it.
CASE = (
    LogRow(10, 2.1, 1.2, 1e-4, 0.1),
    LogRow(20, 0.0, math.nan, 1e-4, 0.2),
    LogRow(30, 0.0, math.nan, 1e-4, 0.3),
    LogRow(40, math.nan, math.inf, 1e-4, 0.4),
)


def fires() -> Audit:
    return audit_run(train_log=CASE)


def silent() -> Audit:
    return audit_run(train_log=train_log([2.0, 1.5, 1.0], norms=[1.0, None, 0.8]))


def norms(*values: float | None, **changes: object) -> Audit:
    return audit_run(train_log=train_log([2.0] * len(values), norms=values), **changes)


@pytest.mark.parametrize(
    ("audit", "expected"),
    [
        (norms(math.inf, 1.0, 1.0), "medium"),
        (norms(math.inf, 1.0, 1.0, fp16=True), "low"),  # the loss scaler skips these steps
        (norms(1.0, 1.0, math.nan), "critical"),
        (norms(1.0, 1.0, math.nan, fp16=True), "critical"),
        (norms(None, None), "skipped"),
        (audit_run(train_log=train_log([2.0, 0.0, 1.0], norms=[1.0, math.nan, 1.0])), "critical"),
    ],
)
def test_what_follows_decides(audit: Audit, expected: str) -> None:
    assert verdict(ID, audit) == expected


def test_the_step_where_it_began_is_named() -> None:
    finding = only(ID, fires())
    assert finding.figures == {"step": 20, "last_step": 40, "count": 3, "norms": 4, "loss": 0.0}
    assert finding.title == (
        "The gradient norm is nan at step 20, where the loss is 0: the run diverged or trained on nothing"
    )


def test_steps_that_the_loss_scaler_skipped_call_for_no_older_checkpoint() -> None:
    log = train_log([2.0, 1.5, 1.0], norms=[1.0, math.inf, 1.0])
    assert only(ID, audit_run(train_log=log, fp16=True)).fix.startswith("Nothing")
    assert "checkpoint from before" in only(ID, audit_run(train_log=log, fp16=False)).fix
