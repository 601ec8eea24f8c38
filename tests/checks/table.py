"""Prints each check's two fixtures as a Markdown table: `python -m tests.checks.table`."""

from __future__ import annotations

from collections.abc import Iterator

from gradian.checks.registry import Check, all_checks
from tests.checks.fixtures import fixture_result


def row(entry: Check) -> str:
    """One line: id, severity, what the firing fixture prints, what the silent one gives."""
    fired = fixture_result(entry, "fires").findings
    silent = fixture_result(entry, "silent")
    severity = "/".join(dict.fromkeys(finding.severity.value for finding in fired)) or "DID NOT FIRE"
    printed = " ; ".join(finding.title for finding in fired).replace("|", "\\|")
    quiet = "passed" if silent.passed else "NOT SILENT"
    return f"| {entry.id} | {severity} | {printed} | {quiet} |"


def table() -> Iterator[str]:
    """The lines of the table, the additions under a heading of their own."""
    entries = all_checks()
    for title, part in (
        ("Published", [entry for entry in entries if not entry.addition]),
        ("Additions", [entry for entry in entries if entry.addition]),
    ):
        yield f"## {title}: {len(part)}"
        yield "| check | severity | printed by the fixture that fires | the other fixture |"
        yield "|---|---|---|---|"
        yield from map(row, part)


if __name__ == "__main__":
    print("\n".join(table()))
