"""Targets that the length limit cuts.

What it detects
    Rows whose answer does not fit into max_seq_length, so that some of its tokens are never trained on. The
    mask is the one that attribution uses. A run whose trainer drops long rows instead of cutting them is left
    to `data.truncated`.

Why it matters
    The model learns answers that stop in mid-sentence, without an end token, and no metric on the whole
    answer survives that. Nothing in the log shows it. Above 5% of the rows it is critical, since then it is a
    habit, and high from one row in a thousand (recorded: one of 800 high, 800 of 800 critical). Below that,
    which is a limit well chosen, medium.

What to do
    Raise max_seq_length to the longest row, or shorten the rows.
"""

from __future__ import annotations

from collections.abc import Iterator

from gradian.checks.audit import Audit
from gradian.checks.registry import Need, check
from gradian.checks.row_findings import handed_on
from gradian.types import Finding, Severity

ID = "data.completion_truncated"
_FEW = 0.001


@check(ID, "Targets cut off by max_seq_length", needs=(Need.DATASET, Need.TOKENIZER, Need.LENGTH))
def completion_truncated(audit: Audit) -> Iterator[Finding]:
    """Hand on what encoding found; the severity follows the share of rows."""
    finding = audit.encoding.get(ID)
    if finding is None or (audit.run and audit.run.hyper.overlong_rows == "drop"):
        return
    total = len(audit.examples)
    share = len(finding.example_ids) / total
    few = Severity.HIGH if share >= _FEW else Severity.MEDIUM
    yield handed_on(
        finding,
        total,
        Severity.CRITICAL if share > audit.limits.data.truncated_share_critical else few,
        fix=finding.fix.replace("max_seq_length", audit.length_setting),
    )
