from __future__ import annotations

import math

import pytest

from gradian.checks.audit import Audit
from tests.checks.building import audit_run, train_log
from tests.checks.fixtures import verdict


def fires() -> Audit:
    return audit_run(fp16=True, bf16=False, train_log=train_log([2.0, 1.5], norms=[math.inf, 1.0]))


def silent() -> Audit:
    return audit_run()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"fp16": True, "bf16": False}, "low"),  # every norm of the log is finite
        ({"fp16": True, "bf16": False, "train_log": ()}, "medium"),
        ({"fp16": False, "bf16": False}, "passed"),  # float32
        ({"fp16": None, "bf16": "auto"}, "skipped"),
        ({"fp16": None, "bf16": None}, "skipped"),
        ({"fp16": False, "bf16": False, "trainer": "unsloth"}, "skipped"),
    ],
)
def test_only_a_run_that_is_known_to_be_fp16_fires(changes: dict[str, object], expected: str) -> None:
    assert verdict("config.fp16_precision", audit_run(**changes)) == expected
