from __future__ import annotations

import io

import pytest
from rich.console import Console

from gradian.report.audit import terminal
from gradian.report.audit.model import AuditReport, SkippedPart
from tests.report.golden import assert_golden
from tests.report.hostile import EVERYTHING

from . import samples


def shown(report: AuditReport, width: int = 80) -> str:
    stream = io.StringIO()
    Console(file=stream, width=width, _environ={}).print(terminal.render(report))
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines()) + "\n"


def test_the_audit_reads_as_it_was_approved() -> None:
    assert_golden(shown(samples.faulty(), 100), "tests/golden/audit_terminal.txt")


def test_what_is_critical_comes_before_everything_else() -> None:
    lines = shown(samples.faulty(), 200).splitlines()
    assert lines[0].startswith("- 2 critical issues")
    assert "Fix these before interpreting anything else." in lines[0]
    heads = [line.split()[0] for line in lines if line.split(" ")[0].isupper()]
    assert heads == ["CRITICAL", "HIGH", "LOW"]


@pytest.mark.parametrize("width", [40, 80, 120])
def test_no_line_is_wider_than_the_terminal_and_every_finding_and_fix_is_there(width: int) -> None:
    text = shown(samples.faulty(), width)
    assert max(len(line) for line in text.splitlines()) <= width
    letters = "".join(text.split())
    for finding in samples.FINDINGS:
        assert finding.severity.value.upper() in letters
        assert finding.id in letters or width < 80
    assert letters.count("Fix:") == 3


def test_only_the_most_common_reasons_for_silence_are_listed_and_the_rest_is_counted() -> None:
    parts = [SkippedPart(id=f"data.x{i}", reason=f"reason {min(i, 8)}") for i in range(12)]
    text = shown(samples.faulty().model_copy(update={"skipped": tuple(parts)}), 200)
    assert "- data.x8, data.x9, data.x10, data.x11: reason 8\n" in text
    assert "- data.x4: reason 4\n" in text
    assert "reason 5" not in text
    assert text.endswith("- and 3 more; --out and --format json have every reason\n")


def test_nothing_from_outside_controls_the_terminal() -> None:
    text = shown(samples.attacked(EVERYTHING))
    assert all(char.isprintable() or char == "\n" for char in text)
    assert "[bold red]x[/]" in shown(samples.attacked("[bold red]x[/]"), 200)
