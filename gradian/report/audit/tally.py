"""Counts in words, and the checks that could not run by what would enable them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gradian.report.audit.model import AuditReport, RunRead, SkippedPart


@dataclass(frozen=True)
class SkipGroup:
    """Checks that were skipped for one reason.

    Attributes:
        reason: why.
        flags: what would enable them, between backticks; empty where the inputs do not say.
        ids: the checks.
    """

    reason: str
    flags: str
    ids: tuple[str, ...]


def skip_groups(skipped: Sequence[SkippedPart]) -> tuple[SkipGroup, ...]:
    """Return the skipped checks by reason: first those that a flag would enable, the largest group first."""
    by_reason: dict[tuple[tuple[str, ...], str], list[str]] = {}
    for entry in skipped:
        by_reason.setdefault((entry.missing, "" if entry.missing else entry.reason), []).append(entry.id)
    groups = [
        SkipGroup(
            f"needs {_flags(missing)}" if missing else reason, _flags(missing) if missing else "", tuple(ids)
        )
        for (missing, reason), ids in by_reason.items()
    ]
    return tuple(sorted(groups, key=lambda group: (not group.flags, -len(group.ids))))


def tally_line(report: AuditReport) -> str:
    """Return one line: how many checks passed, how many were skipped, and what would enable those."""
    groups = skip_groups(report.skipped)
    pieces = [
        f"{len(group.ids)} need{'s' if len(group.ids) == 1 else ''} {group.flags}"
        for group in groups
        if group.flags
    ]
    silent = sum(len(group.ids) for group in groups if not group.flags)
    if silent:
        pieces.append(f"{silent} cannot tell from what is there")
    line = f"{counted(len(report.passed), 'check')} passed, {len(report.skipped)} skipped"
    return f"{line}: {', '.join(pieces)}." if pieces else f"{line}."


def trainer_words(run: RunRead) -> str:
    """Return who wrote the folder."""
    return "by a trainer not recognised" if run.trainer == "unknown" else f"written by {run.trainer}"


def log_words(run: RunRead) -> str:
    """Return how much of a log there is."""
    if not (run.n_logged or run.n_evaluations):
        return "no training log"
    return f"{counted(run.n_logged, 'log row')}, {counted(run.n_evaluations, 'evaluation')}"


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: `1 row`, `1,200 rows`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _flags(missing: Sequence[str]) -> str:
    *others, last = [f"`{flag}`" for flag in missing]
    return f"{', '.join(others)} and {last}" if others else last
