from __future__ import annotations

import math

import pytest

from gradian.checks.audit import Audit
from tests.checks.building import audit_run, train_log
from tests.checks.fixtures import only, verdict

ID = "dynamics.grad_norm_explosion"


def norms(*values: float | None) -> Audit:
    return audit_run(train_log=train_log([1.0] * len(values), norms=values))


def fires() -> Audit:
    return norms(*[0.5] * 20, 25.0, *[0.5] * 20)


def silent() -> Audit:
    return norms(*[0.5] * 20, 24.0, *[0.5] * 20)


@pytest.mark.parametrize(
    ("audit", "expected"),
    [
        (norms(math.nan, math.inf, *[0.5] * 20), "passed"),  # the business of nan_grad_norm
        (norms(*[0.0] * 20, 1.0), "passed"),
        (norms(30.0, 41.0, 9.0, 4.0, 1.0, *[0.2] * 40), "passed"),  # how a run on short labels starts
        (norms(*[0.2 * 2.0**i for i in range(20)], *[0.2] * 40), "high"),  # that grows from step to step
        (norms(0.5, 0.5, 0.5, 90.0), "skipped"),
        (norms(*[None] * 20), "skipped"),
    ],
)
def test_the_median_of_finite_norms_is_the_measure(audit: Audit, expected: str) -> None:
    assert verdict(ID, audit) == expected


def test_the_step_is_named() -> None:
    assert "reached 25 at step 210, 50x its median 0.5" in only(ID, fires()).title
