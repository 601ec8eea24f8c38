"""A chat template whose output for a conversation's beginning is not the beginning of its output.

What it detects
    Rows in which the conversation up to an assistant turn, rendered alone, is not a prefix of the whole row
    rendered. Templates that strip earlier thinking blocks do this, and so do templates that treat the last
    turn apart.

Why it matters
    Trainers that find the answer by rendering turn after turn put the loss mask at the wrong place. And in
    use the model sees the earlier turns in another form than it was trained on. Medium: where the mask is
    taken from the whole render, as Gradian does, the labels are still right.

What to do
    Use a template with `{% generation %}` blocks, or one that leaves earlier turns as they are; or split such
    rows so that each ends with the turn to be learned.
"""

from __future__ import annotations

from collections.abc import Iterator

from gradian.checks.audit import Audit
from gradian.checks.registry import Need, check
from gradian.checks.row_findings import handed_on
from gradian.types import Finding

ID = "data.template_prefix_mismatch"


@check(ID, "Chat template is not prefix-stable", needs=(Need.DATASET, Need.TOKENIZER))
def template_prefix_mismatch(audit: Audit) -> Iterator[Finding]:
    """Hand on what encoding found."""
    finding = audit.encoding.get(ID)
    if finding is not None:
        yield handed_on(finding, len(audit.examples))
