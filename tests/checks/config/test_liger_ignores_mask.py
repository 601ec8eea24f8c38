from __future__ import annotations

import pytest

from gradian.checks.audit import Audit
from tests.checks.building import audit_run
from tests.checks.config.test_packing_with_completion_loss import case
from tests.checks.fixtures import verdict

ID = "config.liger_ignores_mask"


def fires() -> Audit:
    return case("c")


def silent() -> Audit:
    return audit_run(use_liger_kernel=True, versions={"trl": "0.22.0"})


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"versions": {"trl": "0.21.0"}}, "high"),
        (
            {"versions": {"trl": "0.20.0"}, "assistant_only_loss": None, "completion_only_loss": True},
            "passed",
        ),
        ({"versions": {"trl": "0.19.1"}, "assistant_only_loss": None, "completion_only_loss": True}, "high"),
        ({"versions": {}}, "skipped"),
        ({"use_liger_kernel": None}, "skipped"),
        ({"versions": {}, "assistant_only_loss": None}, "passed"),
        ({"versions": {}, "use_liger_kernel": False}, "passed"),
    ],
)
def test_the_mask_and_the_version_decide(changes: dict[str, object], expected: str) -> None:
    assert verdict(ID, audit_run(**{"use_liger_kernel": True, **changes})) == expected


def test_case_27_is_told_apart() -> None:
    assert [verdict(ID, case(name)) for name in "abc"] == ["passed", "passed", "high"]
