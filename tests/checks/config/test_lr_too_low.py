from __future__ import annotations

import pytest

from gradian.checks.audit import Audit
from tests.checks.building import audit_run
from tests.checks.fixtures import verdict


def fires() -> Audit:
    return audit_run(learning_rate=2e-6)


def silent() -> Audit:
    return audit_run(learning_rate=2e-5)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"learning_rate": 2e-5, "lora": {"r": 64, "alpha": 16}}, "medium"),
        ({"learning_rate": 5e-6}, "passed"),  # doubled by alpha / r it is at the threshold
        ({"learning_rate": 5e-6, "lora": None}, "low"),  # may be a full fine-tune
        ({"learning_rate": 0.0}, "medium"),
        ({"learning_rate": 1e-6, "optimizer": "prodigy"}, "skipped"),
    ],
)
def test_the_rate_is_judged_as_the_adapter_feels_it(changes: dict[str, object], expected: str) -> None:
    assert verdict("config.lr_too_low", audit_run(**changes)) == expected
