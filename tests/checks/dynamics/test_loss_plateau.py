from __future__ import annotations

import math

import pytest

from gradian.checks.audit import Audit
from tests.checks.building import audit_run, falling, train_log
from tests.checks.fixtures import only, verdict

ID = "dynamics.loss_plateau"


def between(start: float, end: float, n: int = 20) -> Audit:
    return audit_run(train_log=train_log(falling(n, start, end)))


def fires() -> Audit:
    return between(2.0, 1.98)


def silent() -> Audit:
    return between(2.0, 1.9)


@pytest.mark.parametrize(
    ("audit", "expected"),
    [
        (between(2.0, 3.0), "medium"),
        (between(2.0, 1.0, n=9), "skipped"),
        (audit_run(train_log=train_log([2.0, math.nan, *falling(20), math.nan])), "passed"),
        (audit_run(train_log=train_log([0.0] * 20)), "passed"),
    ],
)
def test_the_ends_are_compared(audit: Audit, expected: str) -> None:
    assert verdict(ID, audit) == expected


def test_a_rise_is_called_one() -> None:
    assert "rose: 2.053 to 2.947 (+43.6%)" in only(ID, between(2.0, 3.0)).title
    assert "barely moved" in only(ID, fires()).title
