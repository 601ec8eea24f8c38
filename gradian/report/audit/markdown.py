"""The audit's report as Markdown (CommonMark with GitHub tables), for people."""

from __future__ import annotations

import json

from gradian.report.audit.model import AuditReport, DatasetRead, Inputs, RunRead
from gradian.report.audit.tally import counted, log_words, skip_groups, tally_line, trainer_words
from gradian.report.escape import markdown_cell, markdown_code, markdown_prose
from gradian.report.markdown import LABEL, findings_section, summary_list, table


def render(report: AuditReport) -> str:
    """Return the report as Markdown. Text from rows, files and settings is escaped or sits in code spans."""
    run = report.inputs.run
    sections = [
        "# Gradian audit",
        summary_list(report.summary),
        findings_section(report.findings),
        _inputs(report),
        _skipped(report),
        _passed(report),
        _run(run) if run else "",
        f"Gradian {report.gradian_version}. `gradian checks ID` explains a check.",
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def _inputs(report: AuditReport) -> str:
    rows = [(name, what) for name, what in _given(report.inputs) if what]
    notes = [f"- {markdown_prose(note)}" for note in (*_reading_notes(report.inputs), *report.notes)]
    parts = ["## What was read", table(("input", "what"), rows), "\n".join(notes)]
    return "\n\n".join(part for part in parts if part)


def _given(inputs: Inputs) -> list[tuple[str, str]]:
    length = "" if inputs.max_seq_length is None else f"{inputs.max_seq_length} tokens"
    source = inputs.max_seq_length_source
    return [
        ("training data", _dataset(inputs.dataset)),
        ("eval data", _dataset(inputs.eval_dataset)),
        ("run folder", _run_line(inputs.run) if inputs.run else ""),
        ("tokenizer", "" if inputs.tokenizer is None else markdown_cell(inputs.tokenizer)),
        ("length limit", f"{length} (from {markdown_cell(source)})" if length and source else length),
    ]


def _dataset(dataset: DatasetRead | None) -> str:
    return "" if dataset is None else f"{markdown_cell(dataset.path)}, {counted(dataset.n, 'row')}"


def _run_line(run: RunRead) -> str:
    pieces = [f"{markdown_cell(run.folder)}, {trainer_words(run)}"]
    if run.checkpoint:
        pieces.append(f"state from {markdown_cell(run.checkpoint, LABEL)}")
    pieces.append(log_words(run))
    if run.unread:
        pieces.append(f"**{counted(len(run.unread), 'file')} not read**")
    return ", ".join(pieces)


def _reading_notes(inputs: Inputs) -> list[str]:
    return [note for dataset in (inputs.dataset, inputs.eval_dataset) if dataset for note in dataset.notes]


def _skipped(report: AuditReport) -> str:
    if not report.skipped:
        return ""
    lines = [
        f"- {markdown_prose(group.reason)}: {', '.join(markdown_code(name, LABEL) for name in group.ids)}"
        for group in skip_groups(report.skipped)
    ]
    return "\n".join(["## Skipped", "", markdown_prose(tally_line(report)), "", *lines])


def _passed(report: AuditReport) -> str:
    if not report.passed:
        return ""
    return "## Passed\n\n" + ", ".join(markdown_code(name, LABEL) for name in report.passed)


def _run(run: RunRead) -> str:
    parts = ["## The run folder"]
    if run.unread:
        parts.append("Not read:")
        parts.append(
            "\n".join(
                f"- {markdown_code(entry.file, LABEL)}: {markdown_prose(entry.reason)}"
                for entry in run.unread
            )
        )
    rows = [
        (
            markdown_cell(s.name, LABEL),
            markdown_cell(_written(s.value)),
            "" if s.source is None else markdown_cell(s.source),
        )
        for s in run.settings
    ]
    rows += [
        (markdown_cell(f"lora.{name}", LABEL), markdown_cell(_written(value)), "`adapter_config.json`")
        for name, value in run.lora.items()
        if value is not None and value is not False and value != []
    ]
    rows += [
        (markdown_cell(f"version of {name}", LABEL), markdown_cell(_written(value)), "")
        for name, value in run.versions.items()
    ]
    if rows:
        parts.append(table(("setting", "value", "read from"), rows))
    return "\n\n".join(parts)


def _written(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
