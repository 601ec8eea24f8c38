from __future__ import annotations

import pytest

from gradian.checks.audit import Audit
from tests.checks.building import audit_run
from tests.checks.fixtures import verdict


def fires() -> Audit:
    return audit_run(learning_rate=5e-4, warmup_steps=0, warmup_ratio=None)


def silent() -> Audit:
    return audit_run(learning_rate=5e-4, warmup_steps=5, warmup_ratio=None)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"warmup_ratio": 0.0}, "medium"),
        ({"warmup_ratio": 0.03}, "passed"),
        ({"warmup_ratio": 0.0, "learning_rate": 2e-4}, "passed"),
        ({"warmup_ratio": None}, "skipped"),
        ({"warmup_ratio": 0.0, "learning_rate": None}, "skipped"),
        ({"warmup_ratio": 0.0, "learning_rate": 1.0, "optimizer": "prodigy"}, "skipped"),
    ],
)
def test_only_a_high_rate_needs_a_warmup(changes: dict[str, object], expected: str) -> None:
    assert verdict("config.no_warmup", audit_run(**{"learning_rate": 5e-4, **changes})) == expected
