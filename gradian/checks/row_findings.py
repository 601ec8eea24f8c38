"""What findings about rows have in common: their figures, the way they name rows, and short excerpts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from gradian.types import Example, Finding, IntArray, Severity

LISTED = 1000
_NAMED = 10
_EXCERPT = 60


def positions_of(ids: Iterable[str]) -> list[int]:
    """The 0-based rows of example ids, which end with them."""
    return [int(key.rpartition("-")[2]) for key in ids]


def row_figures(positions: Sequence[int] | IntArray, total: int, **more: Any) -> dict[str, Any]:
    """Figures of a finding about rows: `count`, `rows` (from 1, the first 1000), `share` of `total`, and `more`."""
    rows = [int(position) + 1 for position in positions[:LISTED]]
    return {"count": len(positions), "rows": rows, "share": len(positions) / total if total else None, **more}


def ids_at(examples: Sequence[Example], positions: Sequence[int] | IntArray) -> tuple[str, ...]:
    """The ids of the examples at these 0-based rows."""
    return tuple(examples[int(position)].id for position in positions)


def row_list(positions: Sequence[int] | IntArray) -> str:
    """`row 3` or `rows 3, 8 and 12 more`, counted from 1."""
    named = ", ".join(str(int(position) + 1) for position in positions[:_NAMED])
    rest = len(positions) - _NAMED
    return f"row{'s' if len(positions) != 1 else ''} {named}" + (f" and {rest} more" if rest > 0 else "")


def counted(n: int, singular: str, plural: str = "") -> str:
    """`1 row` or `2 rows`."""
    return f"{n} {singular if n == 1 else plural or singular + 's'}"


def excerpt(text: str) -> str:
    """The beginning of a text on one line, in quotes; control characters are escaped."""
    line = " ".join(text[: 4 * _EXCERPT].split())
    return repr(line if len(line) <= _EXCERPT else line[: _EXCERPT - 3] + "...")


def handed_on(
    finding: Finding,
    total: int,
    severity: Severity | None = None,
    title: str = "",
    fix: str = "",
) -> Finding:
    """A finding that reading or encoding has made, with the figures that every finding about rows has.

    Args:
        total: rows of the dataset.
        severity, title, fix: in place of the finding's own.
    """
    figures = dict(finding.figures)
    if finding.example_ids:
        made = row_figures(positions_of(finding.example_ids), total)
        # Reading lists at most some of the ids of a large file; its count is of all.
        made["count"] = finding.figures.get("count", made["count"])
        made["share"] = made["count"] / total if total else None
        figures |= made
    return replace(
        finding,
        severity=severity or finding.severity,
        title=title or finding.title,
        fix=fix or finding.fix,
        figures=figures,
    )


def handed_on_by_share(finding: Finding, total: int, high: float) -> Finding:
    """A finding as `handed_on` gives it, high from the share `high` of the rows and medium below."""
    count = finding.figures.get("count", len(finding.example_ids))
    return handed_on(
        finding, total, by_share(count / total, (high, Severity.HIGH), otherwise=Severity.MEDIUM)
    )


def by_share(share: float, *steps: tuple[float, Severity], otherwise: Severity) -> Severity:
    """The severity of the first step whose share is reached; steps go from the largest share down."""
    return next((severity for least, severity in steps if share >= least), otherwise)
