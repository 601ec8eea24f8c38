"""The report's summary for a terminal: what fits on a screen, nothing that a row could make it do."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from gradian.report.escape import visible
from gradian.report.model import Cluster, Report, ReportedFinding
from gradian.types import Severity

STYLES = {
    Severity.CRITICAL: "bold red",
    Severity.HIGH: "red",
    Severity.MEDIUM: "yellow",
    Severity.LOW: "cyan",
    Severity.INFO: "dim",
}
"""How each severity is coloured."""
_CLUSTERS = 8


def render(report: Report) -> RenderableType:
    """Return the summary, the clusters and the findings as a rich renderable.

    All text is `rich.text.Text`, never markup, with control characters shown as escapes; colour and width are
    the console's business.
    """
    parts: list[RenderableType] = [
        bullet(line, "bold" if number == 0 else "") for number, line in enumerate(report.summary)
    ]
    if report.clusters:
        parts += [Text(), _clusters(report.clusters)]
    if report.findings:
        parts += [Text(), *(_finding(finding) for finding in report.findings)]
    return Group(*parts)


def bullet(line: str, style: str) -> RenderableType:
    """Return one sentence as a list item."""
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=1)
    grid.add_column(overflow="fold")
    grid.add_row("-", Text(visible(line, None), style))
    return grid


def _clusters(clusters: tuple[Cluster, ...]) -> RenderableType:
    table = Table(box=None, padding=(0, 1), header_style="bold")
    table.add_column("cluster", overflow="fold", max_width=32)
    for name in ("n", "sum", "share", "mean"):
        table.add_column(name, justify="right", no_wrap=True)
    for cluster in clusters[:_CLUSTERS]:
        same = cluster.label in ("", cluster.id)
        name = visible(cluster.id, 40) if same else f"{visible(cluster.id, 40)}: {visible(cluster.label, 60)}"
        table.add_row(
            Text(name),
            str(cluster.n),
            _number(cluster.sum, "+.4g"),
            _number(cluster.share_of_negative, ".1%"),
            _number(cluster.mean, "+.4g"),
        )
    more = len(clusters) - _CLUSTERS
    return Group(table, Text(f"and {more} more clusters", "dim")) if more > 0 else table


def _finding(finding: ReportedFinding) -> RenderableType:
    head = Text(f"{finding.severity.value:<8} ", STYLES[finding.severity])
    head.append(visible(finding.id, 80), "bold")
    lines: list[RenderableType] = [head, Padding(Text(visible(finding.title, None)), (0, 0, 0, 2))]
    if finding.fix:
        lines.append(Padding(Text(f"Fix: {visible(finding.fix, None)}", "dim"), (0, 0, 0, 2)))
    return Group(*lines)


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)
