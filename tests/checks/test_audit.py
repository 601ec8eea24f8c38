"""Running checks: skipped, passed, failed, found."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gradian.checks.audit import MOST_FINDINGS, NO_LIMIT, Audit, recorded_length, run_audit
from gradian.checks.registry import CannotTell, Check, Need
from gradian.runs.artifact import HyperParameters, RunArtifact
from gradian.types import Finding, Severity


def finding(name: str, severity: Severity = Severity.LOW) -> Finding:
    return Finding(name, severity, "title")


def entry(name: str, judge: object, *needs: Need) -> Check:
    return Check(name, "summary", needs, True, judge)  # type: ignore[arg-type]


def test_a_check_without_its_input_is_skipped_with_the_flag_that_gives_it() -> None:
    result = run_audit(Audit(), [entry("data.a", lambda audit: [finding("data.a")], Need.RUN, Need.LENGTH)])
    assert [(s.id, s.reason) for s in result.skipped] == [
        ("data.a", "needs --run and --max-seq-length (or --run)")
    ]
    assert result.findings == ()


def test_a_check_that_cannot_tell_is_skipped_and_not_passed() -> None:
    def judge(audit: Audit) -> Iterator[Finding]:
        raise CannotTell("the run records no seed")
        yield

    result = run_audit(Audit(run=RunArtifact(Path("r"), "unknown")), [entry("config.a", judge, Need.RUN)])
    assert [s.reason for s in result.skipped] == ["the run records no seed"]
    assert result.passed == ()


def test_a_crash_is_a_finding_and_the_other_checks_still_run() -> None:
    def broken(audit: Audit) -> Iterator[Finding]:
        yield finding("data.b")
        raise KeyError("gone")

    result = run_audit(
        Audit(), [entry("data.b", broken), entry("data.c", lambda audit: [finding("data.c", Severity.HIGH)])]
    )
    assert [f.id for f in result.findings] == ["data.c", "audit.check_failed"]
    assert result.findings[1].figures == {"check": "data.b", "error": "KeyError"}
    assert result.passed == ()


def test_a_finding_under_another_checks_name_is_a_failure() -> None:
    result = run_audit(Audit(), [entry("data.d", lambda audit: [finding("data.other")])])
    assert [f.id for f in result.findings] == ["audit.check_failed"]


def test_findings_come_most_severe_first_and_silent_checks_are_listed_as_passed() -> None:
    result = run_audit(
        Audit(),
        [
            entry("data.e", lambda audit: [finding("data.e", Severity.INFO)]),
            entry("data.f", lambda audit: []),
            entry("data.g", lambda audit: [finding("data.g", Severity.CRITICAL)]),
        ],
    )
    assert [f.id for f in result.findings] == ["data.g", "data.e"]
    assert result.passed == ("data.f",)


def test_a_check_that_finds_the_same_thing_everywhere_shows_the_worst_and_counts_the_rest() -> None:
    many = [finding("data.h") for _ in range(5000)] + [finding("data.h", Severity.HIGH)]
    found = run_audit(Audit(), [entry("data.h", lambda audit: many)]).findings
    assert len(found) == MOST_FINDINGS
    assert (found[0].severity, found[-1].severity) == (Severity.HIGH, Severity.LOW)
    assert found[-1].figures == {"count": 4982, "findings": 5001}


def test_the_length_limit_has_the_name_that_the_trainer_gives_it() -> None:
    def name(trainer: str, source: str | None = None) -> str:
        sources = {"max_length": source} if source else {}
        return Audit(run=RunArtifact(Path("r"), trainer, sources=sources)).length_setting  # type: ignore[arg-type]

    assert Audit().length_setting == "max_seq_length"
    assert (name("trl"), name("axolotl"), name("llamafactory")) == (
        "max_length",
        "sequence_len",
        "cutoff_len",
    )
    assert name("trl", "training_args.bin: max_seq_length") == "max_seq_length"
    assert name("unsloth", "training_args.bin: max_length") == "max_length"
    assert name("llamafactory", "default of LLaMA-Factory") == "cutoff_len"
    assert name("gradian", "gradian_run.json: train: max_seq_length") == "max_seq_length"


@pytest.mark.parametrize(
    ("recorded", "length"), [(None, None), (0, None), (1, None), (2, 2), (10**12, NO_LIMIT)]
)
def test_a_recorded_length_that_no_row_can_be_cut_to_counts_as_not_recorded(
    recorded: int | None, length: int | None
) -> None:
    run = RunArtifact(Path("r"), "unknown", hyper=HyperParameters(max_length=recorded))
    assert recorded_length(run) == length
    assert recorded_length(None) is None
