"""Numbers or objects where text belongs.

What it detects
    Fields with a number, a list or an object in the place of text; they were taken as their JSON text.

Why it matters
    Each trainer writes such a value in its own way (7, 7.0, a Python dict), so that the same file gives
    different training texts. Low.

What to do
    Write these values as text.
"""

from __future__ import annotations

from collections.abc import Iterator

from gradian.checks.audit import Audit
from gradian.checks.registry import Need, check
from gradian.checks.row_findings import handed_on
from gradian.types import Finding

ID = "data.value_converted"


@check(ID, "Numbers or objects where text belongs", needs=(Need.DATASET,), addition=True)
def value_converted(audit: Audit) -> Iterator[Finding]:
    """Hand on what reading found."""
    finding = audit.reading.get(ID)
    if finding is not None:
        yield handed_on(finding, len(audit.examples))
