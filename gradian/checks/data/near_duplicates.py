"""Rows that say nearly the same as another.

What it detects
    Rows whose triples of consecutive words overlap with those of another row at a Jaccard similarity of 0.85
    or more: a changed word in fifty, other punctuation, other case. Exact duplicates are not counted, and
    system turns are not compared. Similarity is estimated from MinHash signatures, with a standard error of
    0.03, so a pair close to the border may fall on either side. Rows made from one long template count too
    where little else is in them.

Why it matters
    Near-copies do what copies do, and a comparison of whole rows misses them: the fine-tune memorises, its
    influence is spread over the copies, and a random split puts some of them into the eval set. Low while
    few, medium from 5% of the rows. 0.85 leaves apart rows that differ in one word of a short sentence, which
    are different rows.

What to do
    Keep one row of each group, or train for fewer epochs. Split by group, not by row, when making an eval
    set.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gradian.checks.audit import Audit
from gradian.checks.near_duplicates import groups
from gradian.checks.registry import Need, check
from gradian.checks.row_findings import by_share, counted, ids_at, row_figures, row_list
from gradian.types import Finding, Severity


@check("data.near_duplicates", "Near-duplicate examples", needs=(Need.DATASET,))
def near_duplicates(audit: Audit) -> Iterator[Finding]:
    """Group the rows by their signatures."""
    examples, limits = audit.examples, audit.limits.data
    seen: set[str] = set()
    distinct = []  # The first of each content: exact copies are the business of data.duplicates.
    for position, example in enumerate(examples):
        content = example.id.rpartition("-")[0]
        if content not in seen:
            seen.add(content)
            distinct.append(position)
    chosen = np.array(distinct, dtype=np.int64)
    group = groups(audit.sketches.take(chosen), limits.near_duplicate_similarity)
    _, first, sizes = np.unique(group, return_index=True, return_counts=True)
    later = np.ones(len(chosen), dtype=np.bool_)
    later[first] = False
    copies = chosen[later]
    if not len(copies):
        return
    largest = chosen[group == group[first[np.argmax(sizes)]]]
    share = len(copies) / len(examples)
    yield Finding(
        "data.near_duplicates",
        by_share(share, (limits.duplicate_share, Severity.MEDIUM), otherwise=Severity.LOW),
        f"{counted(len(copies), 'row is a near-copy', 'rows are near-copies')} of an earlier row"
        f" ({share:.1%} of {len(examples)})",
        f"{counted(int((sizes > 1).sum()), 'group')} of rows with a similarity of"
        f" {limits.near_duplicate_similarity:g} or more; the largest has {len(largest)}: {row_list(largest)}.",
        "Keep one row of each group; split by group, not by row, when making an eval set.",
        ids_at(examples, copies),
        row_figures(copies, len(examples), groups=int((sizes > 1).sum()), largest=len(largest)),
    )
