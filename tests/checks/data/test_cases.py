"""The shared cases that concern rows: each gives its expected finding, on the rows that it names."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gradian.checks.audit import AuditResult, run_audit
from tests.checks.building import CASES, healthy_run
from tests.checks.data.rows import case_audit

LLAMA = "<|start_header_id|>assistant<|end_header_id|>\n\n"


def audited(case: str, file: str, length: int | None, settings: dict[str, Any] | None) -> AuditResult:
    run = healthy_run(**settings) if settings is not None else None
    return run_audit(case_audit(case, file, length=length, run=run))


@pytest.mark.parametrize(
    ("case", "settings", "finding", "rows"),
    [
        ("08-mixed-row-shapes", None, "unknown_row_shape", [5]),
        ("11-sharegpt-bad-order", None, "rows_dropped_by_trainer", [1, 2, 3, 4, 6]),
        ("12-null-content-tool-calls", None, "unrenderable_rows", [1]),
        ("14-multimodal-list-content", None, "unreadable_rows", [2]),
        ("15-nan-null-alpaca", None, "row_without_target", [3, 6]),
        ("15-nan-null-alpaca", None, "null_like_text", [4]),
        ("15-nan-null-alpaca", None, "value_converted", [5]),
        ("17-qwen3-think-stripped", None, "template_prefix_mismatch", [1]),
        ("17-qwen3-think-stripped", None, "template_alters_text", [1]),
        ("18-llama3-date", None, "template_depends_on_date", None),
        ("19-gemma-no-system", None, "unrenderable_rows", [1]),
        (
            "21-no-generation-block",
            {"assistant_only_loss": True, "train_log": ()},
            "assistant_mask_all_zero",
            None,
        ),
        ("22-terminator-outside-mask", None, "end_of_turn_not_supervised", [1]),
        ("22-terminator-outside-mask", None, "missing_eos", [1]),
        ("24-boundary-merge", None, "prompt_not_token_prefix", [1]),
        ("24-boundary-merge", {"response_marker": "Answer:"}, "response_marker_absent", [1, 2]),
        ("26-truncation-removes-target", {"max_length": 64}, "completion_truncated", [1]),
        ("26-truncation-removes-target", {"max_length": 64}, "no_supervised_tokens", [1]),
        ("45-text-rows-wrong-marker", {"response_marker": LLAMA}, "response_marker_absent", [1, 2]),
        (
            "45-text-rows-wrong-marker",
            {"response_marker": LLAMA, "trainer": "unsloth"},
            "missing_eos",
            [2],
        ),
    ],
)
def test_the_case_gives_its_finding_on_its_rows(
    case: str, settings: dict[str, Any] | None, finding: str, rows: list[int] | None
) -> None:
    file = "train.json" if (CASES / case / "train.json").exists() else "train.jsonl"
    result = audited(case, file, (settings or {}).get("max_length"), settings)
    assert "audit.check_failed" not in {made.id for made in result.findings}
    made = next(made for made in result.findings if made.id == f"data.{finding}")
    assert made.figures.get("rows") == rows


@pytest.mark.parametrize(
    ("case", "file"),
    [
        ("01-bom-crlf-jsonl", "train.jsonl"),
        ("05-json-wrapped-data", "train.json"),
        ("06-wrong-extension", "really_jsonl.json"),
        ("09-sharegpt-basic", "train.json"),
        ("28-very-long-line", "train.jsonl"),
    ],
)
def test_cases_that_only_have_to_load_give_nothing_of_weight(case: str, file: str) -> None:
    findings = audited(case, file, None, None).findings
    assert {finding.severity.value for finding in findings} <= {"medium", "low", "info"}, findings


def test_figures_of_all_cases_are_plain_json() -> None:
    for case in sorted(CASES.glob("[0-9]*/train.json*")):
        if case.parent.name[:2] in ("02", "04"):
            continue  # These do not load.
        for finding in audited(case.parent.name, case.name, None, None).findings:
            json.dumps(finding.figures, allow_nan=False)
