"""The verification for a terminal: the finding first, nothing that a row could make it do."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gradian.report.escape import visible
from gradian.report.terminal import bullet
from gradian.report.verification.markdown import interval, named_rounds, number
from gradian.report.verification.model import Verification


def render(verification: Verification) -> RenderableType:
    """Return the summary, the rounds and the notes as a rich renderable.

    All text is `rich.text.Text`, never markup, with control characters shown as escapes.
    """
    parts: list[RenderableType] = [
        bullet(line, "bold" if place == 0 else "") for place, line in enumerate(verification.summary)
    ]
    parts += [Text(), _rounds(verification)]
    if verification.notes:
        parts += [Text(), *(bullet(note, "dim") for note in verification.notes)]
    return Group(*parts)


def _rounds(verification: Verification) -> Table:
    rows = Table(box=None, padding=(0, 1), header_style="bold")
    rows.add_column("round", overflow="fold")
    for name in ("rows", "base", "tuned", "delta"):
        rows.add_column(name, justify="right", no_wrap=True)
    level = "" if verification.ci_level is None else f"{verification.ci_level:.0%} CI"
    rows.add_column(visible(level), justify="right", overflow="fold")
    for name, each, _ in named_rounds(verification):
        rows.add_row(
            Text(name),
            str(each.rows),
            number(each.base, ".3f"),
            number(each.tuned, ".3f"),
            number(each.delta, "+.3f"),
            Text(interval(each.ci_low, each.ci_high)),
        )
    return rows
