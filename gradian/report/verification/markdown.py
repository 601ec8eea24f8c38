"""The verification as Markdown (CommonMark with GitHub tables), for people."""

from __future__ import annotations

from collections.abc import Iterator

from gradian.report.escape import ascii_json, fenced, markdown_cell, markdown_code, markdown_prose
from gradian.report.markdown import LABEL, summary_list, table
from gradian.report.verification.model import Change, Round, Verification, VerifiedItem


def render(verification: Verification) -> str:
    """Return the verification as Markdown. Text from rows and models sits in code spans only."""
    sections = [
        f"# Gradian verification: {markdown_code(verification.capability, LABEL)}",
        summary_list(verification.summary),
        _rounds(verification),
        _items(verification.items),
        _dropped(verification),
        _notes(verification),
        _provenance(verification),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def named_rounds(verification: Verification) -> Iterator[tuple[str, Round, Change | None]]:
    """Yield each round under its name, with its gain over the first."""
    yield "1: every row", verification.before, None
    yield "2: without the accused rows", verification.after, verification.gain
    if verification.control:
        yield "control: without as many others", verification.control.round, verification.control.gain


def interval(low: float | None, high: float | None) -> str:
    """Return an interval's text."""
    return f"[{number(low)}, {number(high)}]"


def number(value: float | None, form: str = "+.4f") -> str:
    """Return a number's text; empty where there is none."""
    return "" if value is None else format(value, form)


def _rounds(verification: Verification) -> str:
    level = "" if verification.ci_level is None else f"{verification.ci_level:.0%} CI"
    rows = [
        (
            name,
            str(each.rows),
            number(each.base, ".4f"),
            number(each.tuned, ".4f"),
            f"**{number(each.delta)}**",
            interval(each.ci_low, each.ci_high),
            f"**{each.verdict.replace('_', ' ')}**",
            f"{number(gain.delta)} {interval(gain.ci_low, gain.ci_high)}" if gain else "",
        )
        for name, each, gain in named_rounds(verification)
    ]
    head = ("round", "rows", "base", "tuned", "delta", level, "verdict", "gain over round 1")
    text = f"## Rounds\n\n{table(head, rows)}\n\nMetric: {markdown_code(verification.metric, LABEL)}."
    if verification.control:
        lead = verification.control.lead
        text += f" Round 2 over the control: {number(lead.delta)} {interval(lead.ci_low, lead.ci_high)}."
    runs = [f"- {name}: {markdown_code(each.run, None)}" for name, each, _ in named_rounds(verification)]
    return "\n".join([text, "", *runs])


def _items(items: tuple[VerifiedItem, ...]) -> str:
    rows = [
        (
            markdown_cell(item.prompt),
            markdown_cell(item.expected),
            *(
                "" if answer is None else markdown_cell(answer)
                for answer in (item.base_answer, item.before_answer, item.after_answer)
            ),
            ", ".join(
                number(score, ".4g") for score in (item.base_score, item.before_score, item.after_score)
            ),
            "**came back**" if item.came_back else "lost" if item.lost else "",
        )
        for item in items
    ]
    head = ("item", "expected", "base model", "round 1", "round 2", "scores", "")
    return f"## Eval items\n\n{table(head, rows)}"


def _dropped(verification: Verification) -> str:
    dropped = verification.dropped
    names = ", ".join(markdown_code(name, LABEL) for name in dropped.ids)
    lines = [
        "## Dropped rows",
        f"{dropped.n} of {dropped.of}: cluster {markdown_code(dropped.cluster, LABEL)}.",
        names,
    ]
    if verification.control:
        others = ", ".join(markdown_code(name, LABEL) for name in verification.control.ids)
        lines.append(f"By the control: {others}")
    return "\n\n".join(lines)


def _notes(verification: Verification) -> str:
    if not verification.notes:
        return ""
    return "\n".join(["## Notes", "", *(f"- {markdown_prose(note)}" for note in verification.notes)])


def _provenance(verification: Verification) -> str:
    return "\n\n".join(
        [
            "## Provenance",
            f"Gradian {verification.gradian_version}.",
            fenced(ascii_json(verification.provenance), "json"),
        ]
    )
