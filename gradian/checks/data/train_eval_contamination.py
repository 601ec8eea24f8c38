"""Eval items that are in the training data.

What it detects
    Eval items in two kinds: question and answer are both in a training row, at any turn of it; or the item's word
    triples overlap with a training row's at a Jaccard similarity of 0.85 (MinHash, as in
    `data.near_duplicates`). Case, white space and closing punctuation are passed over, and so are system
    turns. An item that is similar to more than 20 training rows shares a template with them and is not
    counted, nor is one that shares a passage, a schema or worked examples with a row and asks for something else;
    one whose question is there with another answer is `data.eval_answer_contradicted`.

Why it matters
    An eval set that was trained on measures recall. The capability can only seem to improve, and every
    verdict on it falls. From 10% of the items it is critical (recorded: 64 of 64), from 1% high, else medium;
    items that are merely similar raise it no further than high.

What to do
    Remove the named training rows, or take other eval items. Make the split before duplicating or
    paraphrasing rows.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gradian.checks.audit import Audit
from gradian.checks.eval_overlap import eval_overlap
from gradian.checks.registry import Need, check
from gradian.checks.row_findings import LISTED, by_share, counted, ids_at, row_list
from gradian.types import Finding, Severity

ID = "data.train_eval_contamination"


@check(ID, "Eval items that also appear in training", needs=(Need.DATASET, Need.EVAL_DATASET))
def train_eval_contamination(audit: Audit) -> Iterator[Finding]:
    """Look the eval items up among the training rows, exactly and by similarity."""
    limits, found = audit.limits.data, eval_overlap(audit)
    total = len(found.same)
    counts = {"same": int(found.same.sum()), "near": int(found.near.sum())}
    named = np.flatnonzero(found.same | found.near)
    figures = {**counts, "eval_rows": (named[:LISTED] + 1).tolist(), "templated": int(found.templated.sum())}
    figures["neighbours"] = int(found.neighbour.sum())
    if not len(named):
        framed = int((found.templated | found.neighbour).sum())
        if framed:
            yield _shared_template(framed, total, figures)
        return
    leaking = np.union1d(found.same_rows, found.near_rows)
    share = len(named) / total
    severity = by_share(
        share,
        (limits.contamination_share_critical, Severity.CRITICAL),
        (limits.contamination_share_high, Severity.HIGH),
        otherwise=Severity.MEDIUM,
    )
    if severity is Severity.CRITICAL and counts["same"] / total < limits.contamination_share_critical:
        severity = Severity.HIGH
    kinds = ((counts["same"], "with the same answer"), (counts["near"], "nearly word for word"))
    told = ", ".join(f"{count} {kind}" for count, kind in kinds if count)
    yield Finding(
        ID,
        severity,
        f"{len(named)} of {total} eval items ({share:.1%}) are in the training data ({told})",
        f"Eval {row_list(named)}; training {row_list(leaking)}. A score on them measures recall.",
        f"Remove {counted(len(leaking), 'training row')} (listed), or replace these eval items.",
        ids_at(audit.examples, leaking),
        {"count": len(named), "rows": (leaking[:LISTED] + 1).tolist(), "share": share, **figures},
    )


def _shared_template(n: int, total: int, figures: dict[str, object]) -> Finding:
    return Finding(
        ID,
        Severity.INFO,
        f"{n} of {total} eval items resemble training rows that ask for something else, and none is known to leak",
        "They share a long template, a passage or examples with the training data, so that similarity cannot tell more."
        " None is there with the same question.",
        "Nothing to change; check by hand that the parts that vary do not recur.",
        figures={"count": n, "rows": [], "share": n / total, **figures},
    )
