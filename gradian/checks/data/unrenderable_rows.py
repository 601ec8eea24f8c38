"""Rows that the chat template refuses.

What it detects
    Rows for which the template raises an error: a system turn that it does not know, roles in the wrong
    order, tool calls that it cannot write.

Why it matters
    A trainer stops at such a row, drops it or trains on something else. They take no part in attribution.
    High from 1% of the rows, else medium.

What to do
    Change the rows to what the template accepts (merge the system turn into the first user turn, for
    example), or use a template that knows what they hold.
"""

from __future__ import annotations

from collections.abc import Iterator

from gradian.checks.audit import Audit
from gradian.checks.registry import Need, check
from gradian.checks.row_findings import handed_on_by_share
from gradian.types import Finding

ID = "data.unrenderable_rows"


@check(ID, "Rows that the chat template refuses", needs=(Need.DATASET, Need.TOKENIZER), addition=True)
def unrenderable_rows(audit: Audit) -> Iterator[Finding]:
    """Hand on what encoding found; the severity follows the share of rows."""
    finding = audit.encoding.get(ID)
    if finding is not None:
        yield handed_on_by_share(finding, len(audit.examples), audit.limits.data.bad_rows_share_high)
