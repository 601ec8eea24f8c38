from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from gradian.checks.audit import Audit
from tests.checks.building import healthy_run
from tests.checks.data.rows import Row, audit_rows, chat, healthy, prose, qa
from tests.checks.fixtures import judged, only, verdict

ID = "data.loss_mask_coverage"


def fires() -> Audit:
    return audit_rows([qa(prose(i, 200), "Yes.") for i in range(20)], tokens=True)


def silent() -> Audit:
    return audit_rows(healthy(20), tokens=True, run=healthy_run())


def test_the_share_of_targets_is_told() -> None:
    finding = only(ID, fires())
    assert finding.severity.value == "medium"
    assert (
        finding.figures["coverage"] == finding.figures["supervised_tokens"] / finding.figures["tokens"] < 0.02
    )


CHATS: list[Row] = [chat(prose(i, 20), prose(i + 50, 4)) for i in range(10)]
PAIRS: list[Row] = [qa(prose(i, 20), prose(i + 50, 4)) for i in range(10)]


@pytest.mark.parametrize(
    ("rows", "settings", "expected"),
    [
        (CHATS, {"train_on_inputs": True}, "medium"),
        (CHATS, {"train_on_inputs": False}, "passed"),
        (CHATS, {"assistant_only_loss": False}, "medium"),
        (CHATS, {"assistant_only_loss": False, "trainer": "axolotl"}, "passed"),
        (CHATS, {"assistant_only_loss": False, "response_marker": "<|im_start|>assistant"}, "passed"),
        (CHATS, {"completion_only_loss": False}, "passed"),
        (PAIRS, {"completion_only_loss": False}, "medium"),
        (PAIRS, {"completion_only_loss": None}, "passed"),
        (healthy(5), {"completion_only_loss": False}, "low"),
    ],
)
def test_a_run_that_trains_on_prompts_as_well(
    rows: list[Row], settings: dict[str, Any], expected: str
) -> None:
    assert verdict(ID, audit_rows(rows, tokens=True, run=healthy_run(**settings))) == expected


def test_rendered_conversations_as_raw_text_are_supervised_whole_unless_a_marker_masks_them() -> None:
    rows = [{"text": f"### Instruction:\n{prose(i)}\n\n### Response:\nYes."} for i in range(5)]
    (finding,) = judged(ID, audit_rows(rows, tokens=True)).findings
    assert (finding.severity.value, finding.figures["count"]) == ("low", 5)
    masked = dataclasses.replace(
        audit_rows(rows, tokens=True), run=healthy_run(response_marker="### Response:\n")
    )
    assert verdict(ID, masked) == "passed"


def test_targets_that_the_length_limit_took_are_no_fault_of_the_mask() -> None:
    assert verdict(ID, audit_rows(healthy(40), length=8)) == "passed"
