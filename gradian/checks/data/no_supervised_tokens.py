"""Rows that train on nothing.

What it detects
    Rows in which no token is a target of the loss: the answer is missing, the length limit took it, or the
    chat template refuses the row. The mask is the one that attribution uses.

Why it matters
    Such a row has a gradient of exactly zero. It costs time, thins out every batch it is in, and neither the
    loss curve nor an influence score can show it. From 1% of the rows the finding is critical: then loss mask
    and template, or length and data, do not fit together. Fewer are stray rows: high from 0.1%, else medium.

What to do
    Raise max_seq_length where the cut took the answer; give the other rows an answer or remove them.
"""

from __future__ import annotations

from collections.abc import Iterator

from gradian.checks.audit import Audit
from gradian.checks.registry import Need, check
from gradian.checks.row_findings import by_share, handed_on
from gradian.types import Finding, Severity

ID = "data.no_supervised_tokens"


@check(ID, "Examples that train on nothing", needs=(Need.DATASET, Need.TOKENIZER))
def no_supervised_tokens(audit: Audit) -> Iterator[Finding]:
    """Hand on what encoding found; the severity follows the share of rows."""
    finding = audit.encoding.get(ID)
    if finding is None:
        return
    total = len(audit.examples)
    critical = audit.limits.data.unsupervised_share_critical
    severity = by_share(
        len(finding.example_ids) / total,
        (critical, Severity.CRITICAL),
        (critical / 10, Severity.HIGH),
        otherwise=Severity.MEDIUM,
    )
    longest = max((len(row) + row.truncated for row in audit.encoded if row.truncated_supervised), default=0)
    fix = f"Raise {audit.length_setting} to {longest}, or remove the rows." if finding.figures["cut"] else ""
    yield handed_on(finding, total, severity, fix=fix)
