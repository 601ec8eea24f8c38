from __future__ import annotations

import pytest

from gradian.checks.audit import Audit
from tests.checks.building import audit_run
from tests.checks.fixtures import only, verdict

ID = "config.small_effective_batch"


def fires() -> Audit:
    return audit_run(learning_rate=5e-4, per_device_batch=1, grad_accum=1)


def silent() -> Audit:
    return audit_run(learning_rate=5e-4, per_device_batch=1, grad_accum=8)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"per_device_batch": 2}, "medium"),
        ({"per_device_batch": 2, "grad_accum": None}, "medium"),
        ({"per_device_batch": 1, "n_devices": 4}, "passed"),
        ({"per_device_batch": 1, "learning_rate": 2e-4}, "passed"),
        ({"per_device_batch": 1, "packing": True}, "passed"),
        ({"per_device_batch": None}, "skipped"),
        ({"per_device_batch": 1, "learning_rate": None}, "skipped"),
    ],
)
def test_rows_behind_a_step_are_counted_over_accumulation_and_devices(
    changes: dict[str, object], expected: str
) -> None:
    assert verdict(ID, audit_run(**{"learning_rate": 5e-4, "grad_accum": 1, **changes})) == expected


def test_the_fix_reaches_16_rows_a_step() -> None:
    finding = only(ID, audit_run(learning_rate=5e-4, per_device_batch=1, grad_accum=2))
    assert "effective batch size of 2 with lr=0.0005" in finding.title
    assert "gradient_accumulation_steps to 16" in finding.fix
