"""Rows longer than the length limit.

What it detects
    Rows that max_seq_length cuts at all, whether or not the cut reaches the answer. Where the trainer drops
    such rows instead, `config.dropped_overlong_rows` counts them.

Why it matters
    What was cut was not trained on. Which rows lose a part of their answer is told by
    `data.completion_truncated`; the others lose an end that carries no target. A limit that leaves out the
    longest few rows is usual, so it is low, and medium from 5% of the rows.

What to do
    Raise max_seq_length, or shorten the rows.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gradian.checks.audit import Audit
from gradian.checks.registry import Need, check
from gradian.checks.row_findings import by_share, ids_at, row_figures, row_list
from gradian.types import Finding, Severity


@check("data.truncated", "Examples truncated at all", needs=(Need.DATASET, Need.TOKENIZER, Need.LENGTH))
def truncated(audit: Audit) -> Iterator[Finding]:
    """Count the rows longer than the limit."""
    found = np.array([row.position for row in audit.encoded if row.truncated], dtype=np.int64)
    # Dropped rows are the business of config.dropped_overlong_rows.
    if not len(found) or (audit.run and audit.run.hyper.overlong_rows == "drop"):
        return
    total, counts = len(audit.examples), audit.token_counts
    share, longest = len(found) / total, int(counts.max())
    yield Finding(
        "data.truncated",
        by_share(share, (audit.limits.data.cut_share, Severity.MEDIUM), otherwise=Severity.LOW),
        f"{len(found)} of {total} rows ({share:.1%}) are longer than max_seq_length={audit.max_seq_length}"
        " and cut",
        f"The longest has {longest} tokens, the median row {float(np.median(counts)):g}. {row_list(found).capitalize()}.",
        f"Set {audit.length_setting} to {longest}, or shorten the rows.",
        ids_at(audit.examples, found),
        row_figures(found, total, longest=longest),
    )
