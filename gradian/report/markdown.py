"""The report as Markdown (CommonMark with GitHub tables), for people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gradian.report.escape import ascii_json, fenced, markdown_cell, markdown_code, markdown_prose
from gradian.report.model import Capability, Cluster, Engines, Excerpt, Item, Report, ReportedFinding
from gradian.types import Severity

LABEL = 80
"""Longest id or name, in characters as shown."""
_NAMED_ROWS = 10


def render(report: Report) -> str:
    """Return the report as Markdown. Text from rows and models sits in code spans only."""
    title = (
        f"# Gradian report: {markdown_code(report.capability.name, LABEL)}"
        if report.capability
        else "# Gradian report"
    )
    sections = [
        title,
        summary_list(report.summary),
        _capability(report.capability) if report.capability else "",
        findings_section(report.findings),
        _clusters(report.clusters, diagnosed=report.diagnosed),
        _top_examples(report),
        _items(report.items),
        _engines(report.engines),
        _skipped(report),
        _provenance(report),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def summary_list(lines: Sequence[str]) -> str:
    """Return sentences as a list, the first one bold."""
    first, *rest = [markdown_prose(line) for line in lines]
    return "\n".join([f"- {_strong(first)}", *(f"- {line}" for line in rest)])


def _strong(prose: str) -> str:
    # Around nothing, the asterisks would be a rule across the page.
    return f"**{prose}**" if prose else "*(empty)*"


def _capability(capability: Capability) -> str:
    figures = table(
        ("metric", "base", "tuned", "delta", f"{_percent(capability.ci_level, 0)} CI", "items", "verdict"),
        [
            (
                markdown_cell(capability.metric, LABEL),
                _number(capability.base, ".4f"),
                _number(capability.tuned, ".4f"),
                f"**{_number(capability.delta, '+.4f')}**",
                f"[{_number(capability.ci_low, '+.4f')}, {_number(capability.ci_high, '+.4f')}]",
                str(capability.n_items),
                f"**{capability.verdict.replace('_', ' ')}**",
            )
        ],
    )
    notes = [
        f"{capability.n_flipped} of {capability.n_items} items flipped from right to wrong;"
        f" {capability.n_already_failing} failed before the fine-tune too.",
        f"Query: {markdown_code(capability.query_signal, LABEL)}.",
    ]
    if capability.mean_margin is not None:
        notes.append(f"Mean preference margin of the base model: {capability.mean_margin:+.2f} nats.")
    if capability.proxy_used:
        notes.append("The metric is a proxy (`proxy_used: true`).")
    return f"## Capability\n\n{figures}\n\n{' '.join(notes)}"


def findings_section(findings: Sequence[ReportedFinding]) -> str:
    """Return the findings under a heading for each severity."""
    if not findings:
        return "## Findings\n\nNone."
    parts = ["## Findings"]
    for severity in Severity:
        chosen = [finding for finding in findings if finding.severity is severity]
        if chosen:
            parts.append(f"### {severity.value.capitalize()}")
            parts += [_finding(finding) for finding in chosen]
    return "\n\n".join(parts)


def _finding(finding: ReportedFinding) -> str:
    lines = [f"- {markdown_code(finding.id, LABEL)}: {_strong(markdown_prose(finding.title))}"]
    if finding.evidence:
        lines.append(f"  - Evidence: {markdown_prose(finding.evidence)}")
    if finding.fix:
        lines.append(f"  - Fix: {markdown_prose(finding.fix)}")
    if finding.example_ids:
        shown = ", ".join(markdown_code(name, LABEL) for name in finding.example_ids[:_NAMED_ROWS])
        more = len(finding.example_ids) - _NAMED_ROWS
        lines.append(f"  - Examples: {shown}" + (f" and {more} more" if more > 0 else ""))
    return "\n".join(lines)


def _clusters(clusters: Sequence[Cluster], *, diagnosed: bool) -> str:
    if not clusters:
        return ""
    listing = table(
        (
            "cluster",
            "label",
            "n",
            "signed influence",
            "share of negative",
            "mean per example",
            "relative mean",
        ),
        [
            (
                markdown_cell(cluster.id, LABEL),
                markdown_cell(cluster.label, LABEL),
                str(cluster.n),
                _number(cluster.sum, "+.4g"),
                _percent(cluster.share_of_negative, 1),
                _number(cluster.mean, "+.4g"),
                _number(cluster.relative_mean, "+.4g"),
            )
            for cluster in clusters
        ],
    )
    caution = "" if diagnosed else " Computed, but not a diagnosis."
    excerpts = [_excerpts(cluster) for cluster in clusters if cluster.excerpts]
    return "\n\n".join(
        [
            "## Clusters",
            f"Most harmful first. Negative degraded the capability, positive reinforced it.{caution}",
            listing,
            *excerpts,
        ]
    )


def _excerpts(cluster: Cluster) -> str:
    rows = [f"- {markdown_code(excerpt.id, LABEL)}: {_row(excerpt)}" for excerpt in cluster.excerpts]
    return "\n".join([f"Most negative rows of cluster {markdown_code(cluster.id, LABEL)}:", "", *rows])


def _row(excerpt: Excerpt) -> str:
    target = markdown_code(excerpt.target)
    return f"{markdown_code(excerpt.prompt)} to {target}" if excerpt.prompt else target


def _top_examples(report: Report) -> str:
    if not report.top_examples:
        return ""
    scored = {example.id: example for example in report.examples}
    rows = []
    for excerpt in report.top_examples:
        example = scored[excerpt.id]
        target = markdown_cell(excerpt.target)
        rows.append(
            (
                markdown_cell(example.id, LABEL),
                str(example.row),
                markdown_cell(example.cluster, LABEL),
                _number(example.score, "+.4g"),
                _number(example.predicted_loss_delta_if_removed, "+.4g"),
                _number(example.relative_score, "+.4g"),
                f"{markdown_cell(excerpt.prompt)} to {target}" if excerpt.prompt else target,
            )
        )
    head = ("example", "row", "cluster", "score", "predicted Δloss if removed", "relative", "the row")
    title = "Most harmful rows" if report.diagnosed else "Most negative rows (not a diagnosis)"
    return f"## {title}\n\n{table(head, rows)}"


def _items(items: Sequence[Item]) -> str:
    if not items:
        return ""
    rows = [
        (
            markdown_cell(item.prompt),
            markdown_cell(item.expected),
            "" if item.base_answer is None else markdown_cell(item.base_answer),
            "" if item.tuned_answer is None else markdown_cell(item.tuned_answer),
            f"{_number(item.base_score, '.4g')} to {_number(item.tuned_score, '.4g')}",
            "**yes**" if item.regressed else "no",
            _number(item.margin, "+.2f"),
            ", ".join(
                f"{markdown_cell(harmful.id, LABEL)} ({_number(harmful.score, '+.4g')})"
                for harmful in item.most_harmful
            ),
        )
        for item in items
    ]
    head = (
        "item",
        "expected",
        "base model",
        "tuned model",
        "score",
        "regressed",
        "margin (nats)",
        "most negative rows",
    )
    return f"## Eval items\n\n{table(head, rows)}"


def _engines(engines: Engines) -> str:
    cross = "none" if engines.cross_check is None else markdown_code(engines.cross_check, LABEL)
    return "\n".join(
        [
            "## Engines",
            "",
            f"- Primary: {markdown_code(engines.primary, LABEL)}, ranked by the {engines.ranked_by} score",
            f"- Cross-check: {cross}, Spearman {_number(engines.spearman, '.3f') or 'undefined'}",
            f"- Raw against relative scores: Spearman {_number(engines.relative_spearman, '.3f') or 'undefined'}",
        ]
    )


def _skipped(report: Report) -> str:
    if not report.skipped:
        return ""
    lines = [
        f"- {markdown_code(entry.id, LABEL)}: {markdown_prose(entry.reason)}" for entry in report.skipped
    ]
    return "\n".join(["## Skipped", "", *lines])


def _provenance(report: Report) -> str:
    return "\n\n".join(
        [
            "## Provenance",
            "Every number above follows from this. If a number changed between two runs, a field here did too."
            f" Gradian {report.gradian_version}.",
            fenced(ascii_json(report.provenance), "json"),
        ]
    )


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _percent(value: float | None, decimals: int) -> str:
    return "" if value is None else f"{value:.{decimals}%}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of cells that are Markdown already."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
