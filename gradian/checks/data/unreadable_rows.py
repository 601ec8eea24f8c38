"""Rows that cannot be used.

What it detects
    Rows that hold something which is no text to train on: an image part, a turn without a role, a
    conversation without turns.

Why it matters
    Trainers disagree on what becomes of them: an error, a skipped row, or the text "None". They take no part
    in attribution. High from 1% of the rows, else medium.

What to do
    Correct the named rows or remove them.
"""

from __future__ import annotations

from collections.abc import Iterator

from gradian.checks.audit import Audit
from gradian.checks.registry import Need, check
from gradian.checks.row_findings import handed_on_by_share
from gradian.types import Finding

ID = "data.unreadable_rows"


@check(ID, "Rows that cannot be used", needs=(Need.DATASET,), addition=True)
def unreadable_rows(audit: Audit) -> Iterator[Finding]:
    """Hand on what reading found; the severity follows the share of rows."""
    finding = audit.reading.get(ID)
    if finding is not None:
        yield handed_on_by_share(finding, len(audit.examples), audit.limits.data.bad_rows_share_high)
