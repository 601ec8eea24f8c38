from __future__ import annotations

import math

import pytest

from gradian.checks.audit import Audit
from tests.checks.building import audit_run, falling, train_log
from tests.checks.fixtures import only, verdict

ID = "dynamics.always_clipping"


def clipped(share: float, **changes: object) -> Audit:
    """100 rows, so many of them at four times the clip."""
    norms = [4.0 if i < 100 * share else 0.2 for i in range(100)]
    return audit_run(train_log=train_log(falling(100), norms=norms), **changes)


def fires() -> Audit:
    return clipped(0.97)


def silent() -> Audit:
    return clipped(0.5)


@pytest.mark.parametrize(
    ("audit", "expected"),
    [
        (clipped(0.9), "medium"),
        (clipped(0.89), "passed"),
        (clipped(0.97, max_grad_norm=5.0), "passed"),
        (clipped(0.97, max_grad_norm=0.0), "passed"),  # nothing is clipped
        (clipped(0.97, max_grad_norm=None), "skipped"),
        (audit_run(train_log=train_log([1.0] * 50, norms=[None] * 46 + [4.0] * 4)), "skipped"),
        # NaN and missing norms count on neither side.
        (audit_run(train_log=train_log([1.0] * 20, norms=[None, math.nan] * 5 + [4.0] * 10)), "medium"),
        (audit_run(train_log=train_log([1.0] * 10, norms=[0.99999] * 10)), "medium"),  # logged after clipping
    ],
)
def test_the_share_of_norms_at_the_clip_decides(audit: Audit, expected: str) -> None:
    assert verdict(ID, audit) == expected


def test_the_share_is_in_the_title() -> None:
    assert "(1) in 97% of 100 logged steps" in only(ID, fires()).title
