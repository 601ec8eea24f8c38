"""Eval questions that a training row answers otherwise.

What it detects
    Eval items whose question is in a training row, at any turn of it, with other answers only. Case, white
    space and closing punctuation are passed over, and so are system turns.

Why it matters
    Where one of the two answers is wrong, the capability was not lost but trained away, and these rows are the
    first suspects: in the recorded worked example the planted rows ask what the eval set asks. The ranking
    decides; this check only points. It is medium, since two right answers to one question are no
    fault, and an eval set that describes what went wrong asks just such questions.

What to do
    Read the named training rows. Correct or remove those whose answer is wrong; where both answers are right, take
    a metric that accepts both.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gradian.checks.audit import Audit
from gradian.checks.eval_overlap import exact_overlap
from gradian.checks.registry import Need, check
from gradian.checks.row_findings import LISTED, counted, ids_at, row_list
from gradian.types import Finding, Severity

ID = "data.eval_answer_contradicted"


@check(
    ID,
    "Eval questions that training answers otherwise",
    needs=(Need.DATASET, Need.EVAL_DATASET),
    addition=True,
)
def eval_answer_contradicted(audit: Audit) -> Iterator[Finding]:
    """Look the eval questions up among the training rows."""
    same, other, _, rows = exact_overlap(audit)
    named = np.flatnonzero(other)
    if not len(named):
        return
    total = len(same)
    share = len(named) / total
    yield Finding(
        ID,
        Severity.MEDIUM,
        f"{len(named)} of {total} eval questions ({share:.1%}) are answered otherwise by"
        f" {counted(len(rows), 'training row')}",
        f"Eval {row_list(named)}; training {row_list(rows)}. These rows teach another answer than the one the eval set"
        " wants.",
        "Read the listed training rows, and correct or remove those whose answer is wrong.",
        ids_at(audit.examples, rows),
        {
            "count": len(named),
            "rows": (rows[:LISTED] + 1).tolist(),
            "share": share,
            "eval_rows": (named[:LISTED] + 1).tolist(),
        },
    )
