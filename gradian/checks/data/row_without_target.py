"""Rows without an answer to learn from.

What it detects
    Rows with no assistant turn, or with a null or NaN where the answer belongs, or raw text that is empty.

Why it matters
    They teach nothing at best. Where a trainer turns a null into text they teach the word "None". Medium;
    `data.no_supervised_tokens` weighs what is left after tokenising.

What to do
    Fill in the missing answers, or remove the rows.
"""

from __future__ import annotations

from collections.abc import Iterator

from gradian.checks.audit import Audit
from gradian.checks.registry import Need, check
from gradian.checks.row_findings import handed_on
from gradian.types import Finding

ID = "data.row_without_target"


@check(ID, "Rows without an answer to learn from", needs=(Need.DATASET,), addition=True)
def row_without_target(audit: Audit) -> Iterator[Finding]:
    """Hand on what reading found."""
    finding = audit.reading.get(ID)
    if finding is not None:
        yield handed_on(finding, len(audit.examples))
