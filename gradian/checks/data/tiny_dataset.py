"""Too few rows.

What it detects
    A dataset of fewer than 100 different rows; copies of a row add nothing to it.

Why it matters
    Every row then has a large influence and each statement about clusters rests on a handful, so that a
    ranking says little; and a LoRA learns so few rows by heart within an epoch or two. 100 is where a cluster
    of a tenth of the rows still has ten. Medium: a style can be taught with less.

What to do
    Add rows, or read single scores rather than clusters and keep num_train_epochs at 1 to 2.
"""

from __future__ import annotations

from collections.abc import Iterator

from gradian.checks.audit import Audit
from gradian.checks.registry import Need, check
from gradian.types import Finding, Severity


@check("data.tiny_dataset", "Dataset too small for reliable attribution", needs=(Need.DATASET,))
def tiny_dataset(audit: Audit) -> Iterator[Finding]:
    """Count the rows that differ."""
    n, least = len(audit.examples), audit.limits.data.tiny_dataset_rows
    different = len({example.id.rpartition("-")[0] for example in audit.examples})
    if different < least:
        counted = f"{n} row{'s' if n != 1 else ''}" + (
            f", {different} of them different" if different < n else ""
        )
        yield Finding(
            "data.tiny_dataset",
            Severity.MEDIUM,
            f"The dataset has {counted}: too few for a reliable attribution (below {least})",
            "Shares and clusters of so few rows are noise, and an adapter memorises them within an epoch or two.",
            f"Train on {least} different rows or more; until then read single scores only, and train for 1 to 2 epochs.",
            figures={"count": n, "different": different, "least": least},
        )
