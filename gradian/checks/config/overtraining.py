"""Too many passes over the rows.

What it detects
    `epochs_medium` (3) or more passes over the dataset, or `epochs_high` (8) or more; both twice as many from
    `large_dataset_rows` (10000) rows on. Passes are those that the log shows; where it shows none, the epochs
    asked for, or the steps times the effective batch over the rows when steps were asked for.

Why it matters
    After two or three passes a LoRA has taken from small instruction data what there is, and begins to recite
    it; what it does not recite it forgets. Recorded runs on 800 clean rows: 12 epochs cost 6.08 nats and all 16
    items (high); 3 epochs were worth a mention and broke nothing (medium). All rows are equally involved, so no
    row can be blamed.

What to do
    Set num_train_epochs to 1 or 2, or stop at the lowest eval loss (load_best_model_at_end).
"""

from __future__ import annotations

from collections.abc import Iterator

from gradian.checks.audit import Audit
from gradian.checks.config._amount import n_rows, passes
from gradian.checks.registry import CannotTell, Need, check
from gradian.types import Finding, Severity

_PASSES = 2


@check("config.overtraining", "Too many epochs for the dataset size", needs=(Need.RUN,))
def overtraining(audit: Audit) -> Iterator[Finding]:
    """Compare the passes with what so many rows stand."""
    limits = audit.limits.config
    epochs = passes(audit)
    if epochs < limits.epochs_medium:
        return
    rows = n_rows(audit)
    if rows is None:
        raise CannotTell(f"{epochs:g} epochs over a number of rows that is not known; pass --dataset")
    stands = 2 if rows >= limits.large_dataset_rows else 1
    if epochs < limits.epochs_medium * stands:
        return
    high = epochs >= limits.epochs_high * stands
    yield Finding(
        "config.overtraining",
        Severity.HIGH if high else Severity.MEDIUM,
        f"{epochs:.3g} epochs over {rows} examples "
        + ("make the model recite them" if high else "are more than so few need"),
        f"From {limits.epochs_medium * stands:g} passes over a dataset of this size memorising is likely, from "
        f"{limits.epochs_high * stands:g} it is to be expected.",
        _fix(audit, epochs, high),
        figures={"epochs": epochs, "rows": rows},
    )


def _fix(audit: Audit, epochs: float, high: bool) -> str:
    run = audit.artifact
    steps = run.hyper.max_steps or 0
    if steps > 0:  # Which the trainer obeys, whatever num_train_epochs says.
        taken = min(steps, run.global_step or steps)
        return f"Set max_steps to {max(1, round(taken * _PASSES / epochs))}, which is {_PASSES} epochs."
    return f"Set num_train_epochs to {_PASSES if high else f'1 or {_PASSES}'}."
