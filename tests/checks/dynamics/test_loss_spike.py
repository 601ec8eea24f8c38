from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradian.checks.audit import Audit
from tests.checks.building import audit_run, falling, train_log
from tests.checks.fixtures import only, verdict

ID = "dynamics.loss_spike"


def losses(*values: float) -> Audit:
    return audit_run(train_log=train_log(values))


def with_spikes(*at: int, height: float = 6.0) -> Audit:
    return losses(*(height if i in at else loss for i, loss in enumerate(falling(100))))


def fires() -> Audit:
    return with_spikes(60)


def silent() -> Audit:
    return with_spikes(60, height=3.0)


@pytest.mark.parametrize(
    ("audit", "expected"),
    [
        (losses(8.0, 6.0, 4.0, 3.0, *[1.0] * 50), "passed"),  # a start is no spike
        (losses(6.0, 6.3, 4.0, 3.0, *[1.0] * 50), "passed"),  # nor is its noise
        (losses(*[0.01] * 20, 0.05, *[0.01] * 20), "passed"),  # noise of a loss near zero
        (losses(*[1.0] * 20, math.nan, *[1.0] * 20), "passed"),  # NaN is not for the median
        (losses(1.0, 9.0, 1.0), "skipped"),
    ],
)
def test_only_a_jump_from_below_is_a_spike(audit: Audit, expected: str) -> None:
    assert verdict(ID, audit) == expected


def test_rows_in_a_row_are_one_spike() -> None:
    finding = only(ID, with_spikes(40, 41, 70))
    assert finding.severity == "medium"
    assert finding.figures["steps"] == [410, 710]
    assert finding.title.startswith("2 loss spike(s) above 3x the median loss (up to 6")


@given(st.lists(st.floats(0.01, 10), min_size=5, max_size=60))
def test_a_loss_that_only_falls_has_no_spikes(values: list[float]) -> None:
    assert verdict(ID, losses(*sorted(values, reverse=True))) == "passed"
