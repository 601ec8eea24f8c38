from __future__ import annotations

import dataclasses

import pytest

from gradian.checks.audit import Audit
from tests.checks.building import audit_run, pairs
from tests.checks.fixtures import verdict

ID = "config.no_eval_set"
NONE = {"eval_strategy": "no", "eval_rows": None, "eval_log": ()}


def fires() -> Audit:
    return audit_run(**NONE)


def silent() -> Audit:
    return dataclasses.replace(fires(), eval_dataset=pairs(3))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"eval_strategy": None}, "low"),
        ({"eval_strategy": None, "has_log": False}, "skipped"),
        ({"eval_strategy": "steps"}, "passed"),  # configured, and the run too short to reach it
        ({"eval_rows": 20}, "passed"),
    ],
)
def test_anything_that_was_evaluated_is_an_eval_set(changes: dict[str, object], expected: str) -> None:
    assert verdict(ID, audit_run(**{**NONE, **changes})) == expected
