"""Puts what an audit read and found into one report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, fields

from gradian import __version__
from gradian.checks.audit import AuditResult
from gradian.data.formats import Dataset
from gradian.report.audit.model import (
    AuditReport,
    DatasetRead,
    Inputs,
    RunRead,
    Setting,
    SkippedPart,
    UnreadFile,
)
from gradian.report.audit.tally import counted
from gradian.report.model import ReportedFinding
from gradian.runs.artifact import RunArtifact
from gradian.types import Finding, Severity


def audit_report(result: AuditResult, inputs: Inputs, notes: Sequence[str] = ()) -> AuditReport:
    """Return the report of one audit.

    Args:
        result: what the checks found.
        inputs: what they looked at.
        notes: what was assumed, and which inputs would tell more.
    """
    return AuditReport(
        gradian_version=__version__,
        summary=summary_lines(result.findings, n_passed=len(result.passed), n_skipped=len(result.skipped)),
        findings=tuple(ReportedFinding.of(finding) for finding in result.findings),
        passed=result.passed,
        skipped=tuple(
            SkippedPart(id=entry.id, reason=entry.reason, missing=tuple(need.value for need in entry.missing))
            for entry in result.skipped
        ),
        notes=tuple(notes),
        inputs=inputs,
    )


def summary_lines(findings: Sequence[Finding], *, n_passed: int, n_skipped: int) -> tuple[str, ...]:
    """Return the sentences that the report opens with: what is critical, then how much there is of what."""
    if not findings:
        ran = f"No fault found: {counted(n_passed, 'check')} passed"
        return (f"{ran}, {n_skipped} could not run and say nothing." if n_skipped else f"{ran}.",)
    counts = Counter(finding.severity for finding in findings)
    listed = ", ".join(f"{counts[severity]} {severity.value}" for severity in Severity if counts[severity])
    total = f"{counted(len(findings), 'finding')}: {listed}."
    critical = list(dict.fromkeys(f"`{f.id}`" for f in findings if f.severity is Severity.CRITICAL))
    if not critical:
        return (total,)
    one = counts[Severity.CRITICAL] == 1
    return (
        f"{counted(counts[Severity.CRITICAL], 'critical issue')} {'invalidates or dominates' if one else 'invalidate or dominate'}"
        f" this run: {', '.join(critical)}."
        f" Fix {'it' if one else 'these'} before interpreting anything else.",
        total,
    )


def dataset_read(dataset: Dataset) -> DatasetRead:
    """Return the reported form of a dataset."""
    return DatasetRead(
        path=str(dataset.path), n=len(dataset), shapes=dict(dataset.shapes), notes=tuple(dataset.notes)
    )


def run_read(run: RunArtifact) -> RunRead:
    """Return the reported form of a run folder."""
    # The record's own defaults are no settings of the run, unless it says where they are from.
    recorded = {
        field.name: getattr(run.hyper, field.name)
        for field in fields(run.hyper)
        if field.name in run.sources or getattr(run.hyper, field.name) != field.default
    }
    recorded["base_model"] = run.base_model
    lora = {name: value for name, value in asdict(run.lora).items() if name != "raw"} if run.lora else {}
    return RunRead(
        folder=str(run.folder),
        trainer=run.trainer,
        checkpoint=run.checkpoint,
        base_model=run.base_model,
        n_logged=len(run.train_log),
        n_evaluations=len(run.eval_log),
        global_step=run.global_step,
        total_steps=run.total_steps,
        resumed_from=tuple(resume.from_step for resume in run.resumes),
        settings=tuple(
            Setting(name=name, value=value, source=run.sources.get(name))
            for name, value in recorded.items()
            if value is not None
        ),
        lora=lora,
        versions=dict(run.versions),
        unread=tuple(UnreadFile(file=entry.file, reason=entry.reason) for entry in run.unread),
    )
