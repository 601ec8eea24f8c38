"""Rows that are in the dataset more than once.

What it detects
    Rows with the same content as an earlier row, by the hash of the whole row that example ids begin with.
    The first of each kind is not counted; the copies are listed.

Why it matters
    A repeated row is trained on as often as it is repeated: it is memorised first, it weighs more than its
    neighbours, and each of its copies gets a share of the influence that the row has as a whole. Copies on
    both sides of a split are contamination. Low while few, medium from 5% of the rows.

What to do
    Remove the listed rows; keep one of each. Where the repetition is meant as a weight, say so with fewer
    copies and more epochs.
"""

from __future__ import annotations

from collections.abc import Iterator

from gradian.checks.audit import Audit
from gradian.checks.registry import Need, check
from gradian.checks.row_findings import by_share, counted, excerpt, ids_at, row_figures, row_list
from gradian.checks.turn_keys import row_text
from gradian.types import Finding, Severity


@check("data.duplicates", "Exact duplicate examples", needs=(Need.DATASET,))
def duplicates(audit: Audit) -> Iterator[Finding]:
    """Compare the content hashes of the rows."""
    examples = audit.examples
    counts: dict[str, int] = {}
    copies = []
    for position, example in enumerate(examples):
        content = example.id.rpartition("-")[0]
        counts[content] = counts.get(content, 0) + 1
        if counts[content] > 1:
            copies.append(position)
    if not copies:
        return
    repeated = sum(count > 1 for count in counts.values())
    most = max(counts, key=lambda content: counts[content])
    sample = next(example for example in examples if example.id.startswith(most + "-"))
    share = len(copies) / len(examples)
    yield Finding(
        "data.duplicates",
        by_share(share, (audit.limits.data.duplicate_share, Severity.MEDIUM), otherwise=Severity.LOW),
        f"{counted(len(copies), 'row repeats', 'rows repeat')} an earlier row exactly"
        f" ({share:.1%} of {len(examples)})",
        f"{counted(repeated, 'row is', 'rows are')} there more than once, one of them {counts[most]} times:"
        f" {excerpt(row_text(sample))}. Copies: {row_list(copies)}.",
        "Remove the copies and keep one row of each.",
        ids_at(examples, copies),
        row_figures(copies, len(examples), repeated=repeated, most=counts[most]),
    )
