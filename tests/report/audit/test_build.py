from __future__ import annotations

import pytest

from gradian.report.audit.build import run_read, summary_lines
from gradian.types import Finding, Severity

from . import samples

CRITICAL, HIGH, LOW = Severity.CRITICAL, Severity.HIGH, Severity.LOW


@pytest.mark.parametrize(
    ("severities", "skipped", "lines"),
    [
        ([], 0, ["No fault found: 5 checks passed."]),
        ([], 3, ["No fault found: 5 checks passed, 3 could not run and say nothing."]),
        ([LOW], 3, ["1 finding: 1 low."]),
        (
            [CRITICAL, HIGH, HIGH],
            0,
            [
                "1 critical issue invalidates or dominates this run: `data.0`. Fix it before interpreting anything else.",
                "3 findings: 1 critical, 2 high.",
            ],
        ),
        (
            [CRITICAL, CRITICAL],
            0,
            [
                "2 critical issues invalidate or dominate this run: `data.0`, `data.1`. Fix these before interpreting"
                " anything else.",
                "2 findings: 2 critical.",
            ],
        ),
    ],
)
def test_the_summary_leads_with_what_is_critical(
    severities: list[Severity], skipped: int, lines: list[str]
) -> None:
    findings = [Finding(f"data.{i}", severity, "t") for i, severity in enumerate(severities)]
    assert list(summary_lines(findings, n_passed=5, n_skipped=skipped)) == lines


def test_a_run_folder_is_reported_with_what_it_says_and_nothing_that_it_does_not() -> None:
    read = run_read(samples.RUN)
    assert {setting.name: setting.value for setting in read.settings} == {
        "learning_rate": 2e-3,
        "epochs": 12.0,
        "max_length": 512,
        "scheduler": "cosine",
        "bf16": True,
        "base_model": "org/base",
    }
    assert read.settings[0].source == "training_args.bin: learning_rate"
    assert (read.n_logged, read.n_evaluations, read.resumed_from) == (2, 1, (600,))
    assert read.lora["alpha"] == 16
    assert "raw" not in read.lora
    assert [(entry.file, entry.reason) for entry in read.unread] == [("optimizer.pt", "never opened")]


def test_a_skipped_check_keeps_its_reason_and_the_flags_that_enable_it() -> None:
    skipped = {entry.id: (entry.reason, entry.missing) for entry in samples.faulty().skipped}
    assert skipped["data.truncated"] == ("needs --base-model", ("--base-model",))
    assert skipped["config.seed_unset"] == ("the run folder records no seed", ())
