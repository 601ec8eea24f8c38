"""End-of-turn token outside the loss mask.

What it detects
    Assistant turns whose end-of-turn token is not a target: the template closes its generation block before
    the token, or writes no such token.

Why it matters
    The model is never taught to stop and runs on to the length limit. High from 1% of the rows; below that
    some odd rows do it and the rest teach the ending.

What to do
    Move `{% endgeneration %}` behind the end-of-turn token, or use a template that writes one.
"""

from __future__ import annotations

from collections.abc import Iterator

from gradian.checks.audit import Audit
from gradian.checks.registry import Need, check
from gradian.checks.row_findings import handed_on_by_share
from gradian.types import Finding

ID = "data.end_of_turn_not_supervised"


@check(ID, "End-of-turn token outside the loss mask", needs=(Need.DATASET, Need.TOKENIZER), addition=True)
def end_of_turn_not_supervised(audit: Audit) -> Iterator[Finding]:
    """Hand on what encoding found; the severity follows the share of rows."""
    finding = audit.encoding.get(ID)
    if finding is not None:
        yield handed_on_by_share(finding, len(audit.examples), audit.limits.data.bad_rows_share_high)
