"""Text that is a bare word such as None or nan.

What it detects
    Fields that hold nothing but None, nan, null, undefined or <NA>, as text.

Why it matters
    Mostly a missing value that some export wrote out as a word; the model then learns the word. Low: it can
    also be meant.

What to do
    Where it stands for a missing value, make it null or remove the row.
"""

from __future__ import annotations

from collections.abc import Iterator

from gradian.checks.audit import Audit
from gradian.checks.registry import Need, check
from gradian.checks.row_findings import handed_on
from gradian.types import Finding

ID = "data.null_like_text"


@check(ID, "Text that is a bare word such as None or nan", needs=(Need.DATASET,), addition=True)
def null_like_text(audit: Audit) -> Iterator[Finding]:
    """Hand on what reading found."""
    finding = audit.reading.get(ID)
    if finding is not None:
        yield handed_on(finding, len(audit.examples))
