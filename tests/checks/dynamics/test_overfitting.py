from __future__ import annotations

import math

import pytest

from gradian.checks.audit import Audit
from tests.checks.building import audit_run, eval_log, falling, train_log
from tests.checks.fixtures import judged, only, verdict

ID = "dynamics.overfitting"


def evals(*values: float | None, **changes: object) -> Audit:
    return audit_run(eval_log=eval_log(values), **changes)


def fires() -> Audit:
    return evals(1.5, 1.2, 1.3)


def silent() -> Audit:
    return evals(1.5, 1.2, 1.25)


@pytest.mark.parametrize(
    ("audit", "expected"),
    [
        (evals(1.5, 1.2, 1.5), "high"),
        (evals(1.5, 1.2, 1.5, train_log=train_log(falling(100, 1.0, 2.0))), "passed"),  # all of it got worse
        (evals(1.5, 1.2, math.nan, 1.3, None), "medium"),
        (evals(1.5, 1.2, 1.3, train_log=()), "medium"),
        (evals(0.4, 0.02, 0.03), "passed"),
        (evals(0.4, 0.1, 0.13), "medium"),
        (evals(1.5), "skipped"),
        (evals(), "skipped"),
    ],
)
def test_a_rise_against_a_falling_training_loss_fires(audit: Audit, expected: str) -> None:
    assert verdict(ID, audit) == expected


def test_each_eval_set_is_judged_by_itself() -> None:
    log = (*eval_log([1.5, 1.0, 1.4], name="math"), *eval_log([1.5, 1.2, 1.0], name="chat"))
    (finding,) = judged(ID, audit_run(eval_log=log)).findings
    assert finding.figures["eval_set"] == "math"
    assert "of 'math' rose 40% from its lowest, 1 at step 200, to 1.4 at step 300" in finding.title


def test_the_fix_is_the_step_of_the_lowest_loss() -> None:
    assert "checkpoint of step 200" in only(ID, fires()).fix
