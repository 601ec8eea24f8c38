"""Roles that chat templates do not know.

What it detects
    Turns whose role is none of system, developer, user, assistant or tool, nor a known other name for one of
    them.

Why it matters
    Templates write an unknown role out as it is, drop the turn or refuse the row. Medium: it depends on the
    template.

What to do
    Use system, user, assistant and tool (or human and gpt).
"""

from __future__ import annotations

from collections.abc import Iterator

from gradian.checks.audit import Audit
from gradian.checks.registry import Need, check
from gradian.checks.row_findings import handed_on
from gradian.types import Finding

ID = "data.unknown_role"


@check(ID, "Roles that chat templates do not know", needs=(Need.DATASET,), addition=True)
def unknown_role(audit: Audit) -> Iterator[Finding]:
    """Hand on what reading found."""
    finding = audit.reading.get(ID)
    if finding is not None:
        yield handed_on(finding, len(audit.examples))
