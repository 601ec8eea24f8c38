"""Takes the rows that a report accuses out of the training file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gradian.data.formats import load_dataset
from gradian.data.subset import Subset, write_subset
from gradian.errors import DataError
from gradian.report.accused import Accused, accused_rows
from gradian.report.model import Report


@dataclass(frozen=True)
class Removal:
    """A training file without the accused rows.

    Attributes:
        accused: what was left out.
        kept: the file.
    """

    accused: Accused
    kept: Subset


def remove_accused(report: Report, source: str | Path, target: Path) -> Removal:
    """Write the training file without the rows that the report accuses; see `write_subset`.

    Args:
        report: of an attribution over `source`.
        source: what `load_dataset` takes.
        target: the file to write.

    Raises:
        NothingAccusedError: the report accuses no row; nothing is written.
        DataError: the file holds other rows than the report is about, or the target is no place for it.
    """
    accused = accused_rows(report)
    check_rows(report, source)
    return Removal(accused, write_subset(source, target, accused.rows))


def check_rows(report: Report, source: str | Path) -> None:
    """Refuse a dataset whose rows are not those of the report, one by one and in order.

    Raises:
        DataError: they differ.
    """
    rows = load_dataset(source).examples
    if len(rows) == len(report.examples):
        at = next(
            (row for row, (a, b) in enumerate(zip(rows, report.examples, strict=True)) if a.id != b.id), None
        )
        if at is None:
            return
        found = f"row {at + 1} is {rows[at].id}, and {report.examples[at].id} in the report"
    else:
        found = f"{len(rows)} rows, and {len(report.examples)} in the report"
    raise DataError(
        "the file holds other rows than the report is about",
        where=str(source),
        found=found,
        fix="give the very file that was attributed, or attribute this one",
    )


def removal_lines(removal: Removal) -> tuple[str, ...]:
    """Return what was left out and what stays, as sentences for a terminal."""
    accused, kept = removal.accused, removal.kept
    rows = f"{len(accused.rows)} of {accused.n} rows"
    return (
        f"clean: {kept.source}, {kept.n} rows as they were, without the {rows} of cluster {accused.cluster}",
        f"dropped: {', '.join(accused.ids)}",
    )
