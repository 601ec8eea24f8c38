"""Rows that training never saw, because they are longer than its limit.

What it detects
    The trainer drops rows over its length limit (axolotl's default, excess_length_strategy: drop) and the
    dataset has such rows. From `dropped_rows_high` (5%) of the rows on it is high, else medium.

Why it matters
    A dropped row taught nothing, yet it counts in the dataset and gets an influence score like the others. If
    one topic has the long rows, the model never heard of it.

What to do
    Raise the limit (sequence_len) to the longest row, split these rows, or take them out of the dataset that is
    attributed.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gradian.checks.audit import Audit
from gradian.checks.registry import CannotTell, Need, check
from gradian.types import Finding, Severity


@check(
    "config.dropped_overlong_rows",
    "Rows that the trainer drops for their length",
    needs=(Need.RUN, Need.DATASET, Need.TOKENIZER, Need.LENGTH),
    addition=True,
)
def dropped_overlong_rows(audit: Audit) -> Iterator[Finding]:
    """Count the rows over a limit that drops."""
    limit, lengths, fate = audit.max_seq_length, audit.token_counts, audit.artifact.hyper.overlong_rows
    longer = np.flatnonzero(lengths > (limit or 0))
    if not len(longer) or fate == "truncate":
        return
    if fate is None:
        raise CannotTell(
            f"{len(longer)} rows are over the limit, and the run folder does not say if those are dropped or cut"
        )
    share, longest = len(longer) / len(lengths), int(lengths.max())
    yield Finding(
        "config.dropped_overlong_rows",
        Severity.HIGH if share >= audit.limits.config.dropped_rows_high else Severity.MEDIUM,
        f"{len(longer)} of {len(lengths)} rows ({share:.1%}) are over {limit} tokens and were dropped in training",
        f"The {audit.artifact.trainer} run drops longer rows; the longest has {longest} tokens.",
        f"Raise {audit.length_setting} to {longest}, or remove these rows before attribution.",
        tuple(audit.encoded[i].id for i in longer),
        {"count": len(longer), "rows": len(lengths), "max_length": limit, "longest": longest},
    )
