from __future__ import annotations

import pytest

from gradian.checks.audit import Audit
from tests.checks.building import audit_run, train_log
from tests.checks.fixtures import only, verdict

ID = "config.undertrained"


def fires() -> Audit:
    return audit_run(global_step=6, total_steps=6)


def silent() -> Audit:
    return audit_run(global_step=50, total_steps=50)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"train_log": train_log([2.0, 1.0])}, "medium"),  # the last row is step 20
        ({"train_log": (), "max_steps": 20}, "medium"),
        ({"train_log": (), "n_train_rows": 160}, "medium"),  # 2 epochs of 160 rows by 16 are 20 steps
        ({"train_log": (), "n_train_rows": 1600}, "passed"),
        ({"train_log": (), "n_train_rows": None}, "skipped"),
    ],
)
def test_steps_come_from_the_state_the_log_or_the_plan(changes: dict[str, object], expected: str) -> None:
    assert verdict(ID, audit_run(**{"global_step": None, "total_steps": None, **changes})) == expected


def test_steps_taken_are_shown_beside_those_planned() -> None:
    assert "planned" not in only(ID, fires()).title
    assert "6 optimizer steps of 1000 planned" in only(ID, audit_run(global_step=6)).title


@pytest.mark.parametrize(
    ("changes", "fix"),
    [
        # 16 rows a step in the fixture.
        ({"global_step": 25, "total_steps": 25}, "rows a step from 16 to 8"),
        ({"global_step": 49, "total_steps": 49}, "rows a step from 16 to 15"),
        ({"global_step": 3, "total_steps": 3}, "would still be only 48 steps"),
        ({"global_step": 25, "total_steps": 500}, "the 500 steps that were planned"),
        ({"global_step": 20, "total_steps": 20, "max_steps": 20}, "max_steps from 20 to 50"),
        ({"global_step": 20, "total_steps": 20, "per_device_batch": None}, "gradient_accumulation_steps"),
    ],
)
def test_the_fix_reaches_the_threshold_and_asks_for_no_more_passes(
    changes: dict[str, object], fix: str
) -> None:
    told = only(ID, audit_run(**changes)).fix
    assert fix in told
    assert "epochs" not in told
