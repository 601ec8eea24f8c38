from __future__ import annotations

import pytest

from gradian.checks.audit import Audit
from tests.checks.building import audit_run
from tests.checks.fixtures import verdict


def fires() -> Audit:
    return audit_run(lora={"dropout": 0.3}, n_train_rows=400)


def silent() -> Audit:
    return audit_run(lora={"dropout": 0.3}, n_train_rows=5000)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"lora": {"dropout": 0.1}, "n_train_rows": 400}, "passed"),
        ({"lora": {"dropout": 0.3}, "n_train_rows": None}, "skipped"),
        ({"lora": {"dropout": None}}, "skipped"),
        ({"lora": None}, "skipped"),
    ],
)
def test_dropout_and_rows_must_both_be_known_and_bad(changes: dict[str, object], expected: str) -> None:
    assert verdict("config.high_lora_dropout", audit_run(**changes)) == expected
