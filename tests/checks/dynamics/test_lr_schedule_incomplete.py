from __future__ import annotations

import pytest

from gradian.checks.audit import Audit
from tests.checks.building import audit_run, falling, train_log
from tests.checks.fixtures import only, verdict

ID = "dynamics.lr_schedule_incomplete"


def rates(end: float, steps: int = 1000, every: int = 10, **changes: object) -> Audit:
    """A rate that falls from 1e-4 to `end` within `steps`, in a run planned for 1000."""
    n = steps // every
    log = train_log(falling(n), rates=falling(n, 1e-4, end), every=every)
    return audit_run(**{"train_log": log, "global_step": steps, "scheduler": "linear", **changes})


def fires() -> Audit:
    return rates(6e-5, steps=400)


def silent() -> Audit:
    return rates(1e-6)


@pytest.mark.parametrize(
    ("audit", "expected"),
    [
        (rates(1e-4, steps=400, scheduler="constant_with_warmup"), "passed"),
        (rates(1e-4, steps=400, scheduler="SchedulerType.CONSTANT"), "passed"),
        (rates(3e-5, scheduler="cosine_with_min_lr"), "passed"),
        (rates(3e-5, scheduler="cosine"), "medium"),
        (rates(3e-5, steps=400, scheduler="cosine_with_min_lr"), "medium"),  # stopped on the way
        # The run went to its end; only its last row is from before.
        (rates(3e-5, steps=700, every=100, global_step=1000), "passed"),
        (rates(6e-5, total_steps=None), "medium"),
        (rates(1e-4, scheduler=None), "skipped"),
        (rates(6e-5, scheduler=None), "medium"),
        (rates(6e-5, steps=20), "skipped"),
        (rates(6e-5, has_log=False), "skipped"),
    ],
)
def test_schedule_and_plan_decide_together(audit: Audit, expected: str) -> None:
    assert verdict(ID, audit) == expected


def test_the_title_says_where_it_stopped() -> None:
    assert "60% of its peak (6e-05 of 0.0001), at step 400 of 1000" in only(ID, fires()).title
