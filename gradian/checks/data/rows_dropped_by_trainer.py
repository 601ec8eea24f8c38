"""Conversations that the trainer leaves out for the order of their roles.

What it detects
    Rows that LLaMA-Factory's ShareGPT reader drops: turns that do not alternate between user and assistant
    (after an optional system turn), an odd number of them, none at all, or an unknown role. Looked at for
    runs of LLaMA-Factory and, without a run folder, for files in ShareGPT form (`conversations` with `from`
    and `value`).

Why it matters
    It drops them with one line in its log. They were not trained on, yet they stand in the dataset, and
    attribution would score them. High from 5% of the rows, else medium.

What to do
    Put the turns in order (merge two in a row from the same speaker), end each row with the assistant, use
    known roles; or remove the rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from gradian.checks.audit import Audit
from gradian.checks.registry import Need, check
from gradian.checks.row_findings import by_share, ids_at, row_figures, row_list
from gradian.data.rows import alternation_problem
from gradian.types import Finding, Severity

ID = "data.rows_dropped_by_trainer"
_LOOKED_AT = 65_536  # Bytes of the file that show its form.
_SHAREGPT = re.compile(rb'"conversations?"\s*:\s*\[')
_FROM = re.compile(rb'"from"\s*:')


@check(ID, "Rows dropped for the order of their roles", needs=(Need.DATASET,), addition=True)
def rows_dropped_by_trainer(audit: Audit) -> Iterator[Finding]:
    """Apply the trainer's rule to each conversation."""
    if audit.run is not None:
        if audit.run.trainer != "llamafactory":
            return
    elif audit.dataset is None or not _is_sharegpt(audit.dataset.path):
        return
    reasons: dict[str, list[int]] = {}
    for example in audit.examples:
        if example.shape == "messages":
            problem = alternation_problem(example.messages)
            if problem is not None:
                reasons.setdefault(problem, []).append(example.position)
    dropped = sorted(row for rows in reasons.values() for row in rows)
    if not dropped:
        return
    total = len(audit.examples)
    share = len(dropped) / total
    listed = list(reasons.items())
    rest = f"; and {len(listed) - 8} more reasons" if len(listed) > 8 else ""
    yield Finding(
        ID,
        by_share(share, (audit.limits.data.dropped_share_high, Severity.HIGH), otherwise=Severity.MEDIUM),
        f"LLaMA-Factory would drop {len(dropped)} of {total} rows ({share:.1%}) for the order of their roles",
        "; ".join(f"{row_list(rows)}: {reason}" for reason, rows in listed[:8]) + rest + ".",
        "Merge turns of one speaker, end each row with the assistant and use known roles, or remove the rows.",
        ids_at(audit.examples, dropped),
        row_figures(dropped, total, reasons={reason: len(rows) for reason, rows in listed[:100]}),
    )


def _is_sharegpt(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        head = file.read(_LOOKED_AT)
    return bool(_SHAREGPT.search(head) and _FROM.search(head))
