from __future__ import annotations

import math

import pytest

from gradian.checks.audit import Audit
from tests.checks.building import audit_run
from tests.checks.fixtures import verdict


def fires() -> Audit:
    return audit_run(max_grad_norm=0.0)


def silent() -> Audit:
    return audit_run(max_grad_norm=0.3)


@pytest.mark.parametrize(
    ("clip", "expected"), [(math.inf, "medium"), (-1.0, "medium"), (None, "skipped"), (math.nan, "skipped")]
)
def test_a_clip_that_never_acts_is_none(clip: float | None, expected: str) -> None:
    assert verdict("config.grad_clip_disabled", audit_run(max_grad_norm=clip)) == expected
