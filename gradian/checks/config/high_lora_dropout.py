"""Much dropout where there is little data.

What it detects
    LoRA dropout above `max_dropout` (0.1) on fewer than `small_dataset_rows` (1000) rows.

Why it matters
    Dropout zeroes part of the adapter's input on every step. The QLoRA paper uses 0.1 for its small models and
    0.05 for its large ones; above that, a few hundred rows are too few steps to learn what is dropped that
    often, and facts stated once or twice are missed.

What to do
    Set lora_dropout to 0.05, or to 0.
"""

from __future__ import annotations

from collections.abc import Iterator

from gradian.checks.audit import Audit
from gradian.checks.config._amount import n_rows
from gradian.checks.registry import CannotTell, Need, check
from gradian.types import Finding, Severity


@check("config.high_lora_dropout", "High LoRA dropout on a small dataset", needs=(Need.RUN,))
def high_lora_dropout(audit: Audit) -> Iterator[Finding]:
    """Compare dropout and rows with their thresholds."""
    run, limits = audit.artifact, audit.limits.config
    dropout = run.lora.dropout if run.lora else None
    if dropout is None:
        raise CannotTell("the run folder records no LoRA dropout")
    if dropout <= limits.max_dropout:
        return
    rows = n_rows(audit)
    if rows is None:
        raise CannotTell("the number of training rows is not known; pass --dataset")
    if rows >= limits.small_dataset_rows:
        return
    yield Finding(
        "config.high_lora_dropout",
        Severity.MEDIUM,
        f"LoRA dropout is {dropout:g} on a dataset of {rows} rows",
        f"Above {limits.max_dropout:g}, fewer than {limits.small_dataset_rows} rows give too few steps.",
        "Set lora_dropout to 0.05.",
        figures={"dropout": dropout, "rows": rows},
    )
