"""The audit's report for a terminal: a table by severity, nothing that a row or a setting could make it do."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gradian.report.audit.model import AuditReport, DatasetRead, Inputs, RunRead
from gradian.report.audit.tally import counted, log_words, skip_groups, tally_line, trainer_words
from gradian.report.escape import visible
from gradian.report.terminal import STYLES, bullet
from gradian.types import Severity

# Reasons why a check cannot tell, the most common first: the rest is in the files.
_SILENT_GROUPS = 6


def render(report: AuditReport) -> RenderableType:
    """Return the audit as a rich renderable: what is critical, what was read, the findings, what did not run.

    All text is `rich.text.Text`, never markup, with control characters shown as escapes.
    """
    parts: list[RenderableType] = [
        bullet(_plain(line), "bold" if number == 0 else "") for number, line in enumerate(report.summary)
    ]
    parts += [Text(), _inputs(report)]
    if report.findings:
        parts += [Text(), _findings(report)]
    parts += [Text(), Text(_plain(tally_line(report)))]
    silent = [group for group in skip_groups(report.skipped) if not group.flags]
    parts += [
        bullet(f"{', '.join(group.ids)}: {_plain(group.reason)}", "dim") for group in silent[:_SILENT_GROUPS]
    ]
    more = sum(len(group.ids) for group in silent[_SILENT_GROUPS:])
    if more:
        parts.append(bullet(f"and {more} more; --out and --format json have every reason", "dim"))
    return Group(*parts)


def _findings(report: AuditReport) -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(overflow="fold")
    grid.add_column(overflow="fold")
    for severity in Severity:
        chosen = [finding for finding in report.findings if finding.severity is severity]
        if not chosen:
            continue
        if grid.row_count:
            grid.add_row()
        head = f"{severity.value.upper()} ({len(chosen)})"
        urgent = "fix before interpreting anything else" if severity is Severity.CRITICAL else ""
        grid.add_row(Text(head, STYLES[severity]), Text(urgent, STYLES[severity]))
        for finding in chosen:
            grid.add_row(Text(visible(finding.id, 80), "bold"), Text(visible(finding.title, None)))
            if finding.fix:
                grid.add_row("", Text(f"Fix: {visible(finding.fix, None)}", "dim"))
    return grid


def _inputs(report: AuditReport) -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True, style="dim")
    grid.add_column(overflow="fold")
    for name, what in _given(report.inputs):
        grid.add_row(name, Text(what))
    for note in report.notes:
        grid.add_row("note", Text(_plain(note)))
    return grid


def _given(inputs: Inputs) -> Iterator[tuple[str, str]]:
    if inputs.dataset:
        yield "data", _dataset(inputs.dataset)
    if inputs.eval_dataset:
        yield "eval data", _dataset(inputs.eval_dataset)
    if inputs.run:
        yield from _run(inputs.run)
    if inputs.tokenizer is not None:
        yield "tokenizer", visible(inputs.tokenizer)
    if inputs.max_seq_length is not None:
        source = f" (from {visible(inputs.max_seq_length_source)})" if inputs.max_seq_length_source else ""
        yield "length limit", f"{inputs.max_seq_length:,} tokens{source}"


def _dataset(dataset: DatasetRead) -> str:
    notes = "".join(f" {visible(note)}" for note in dataset.notes)
    return f"{visible(dataset.path)}: {counted(dataset.n, 'row')}.{notes}"


def _run(run: RunRead) -> Iterator[tuple[str, str]]:
    state = f", state from {visible(run.checkpoint, 80)}" if run.checkpoint else ""
    yield "run", f"{visible(run.folder)}: {trainer_words(run)}{state}; {log_words(run)}."
    for entry in run.unread:
        yield "not read", f"{visible(entry.file, 80)}: {visible(entry.reason)}"


def _plain(text: str) -> str:
    # Backticks mark code in Markdown; a terminal shows the text itself.
    return visible(text.replace("`", ""), None)
