"""Rows that match no known shape.

What it detects
    Rows without any of the known keys (messages, prompt and completion, instruction and output, text, ...).
    They are taken as raw text, the keys included.

Why it matters
    A trainer that looks for one column fails on such rows or trains on nothing. Medium: mostly it is a wrong
    key name or a stray line.

What to do
    Rename the keys to one of the documented shapes, or remove the rows.
"""

from __future__ import annotations

from collections.abc import Iterator

from gradian.checks.audit import Audit
from gradian.checks.registry import Need, check
from gradian.checks.row_findings import handed_on
from gradian.types import Finding

ID = "data.unknown_row_shape"


@check(ID, "Rows that match no known shape", needs=(Need.DATASET,), addition=True)
def unknown_row_shape(audit: Audit) -> Iterator[Finding]:
    """Hand on what reading found."""
    finding = audit.reading.get(ID)
    if finding is not None:
        yield handed_on(finding, len(audit.examples))
