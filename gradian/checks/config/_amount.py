"""How much a run trained: rows, passes over them, optimizer steps."""

from __future__ import annotations

from collections.abc import Iterator

from gradian.checks.audit import Audit
from gradian.checks.registry import CannotTell
from gradian.runs.artifact import RunArtifact

# A run this close to its planned end reached it: trainers drop the last incomplete batch of an epoch.
_COMPLETE = 0.9


def n_rows(audit: Audit) -> int | None:
    """Rows trained on: those of the dataset given, else what the run records, else what its steps add up to."""
    run = audit.run
    if audit.dataset is not None and len(audit.dataset):
        return len(audit.dataset)
    if run is None or run.n_train_rows:
        return run.n_train_rows if run else None
    epoch, batch = last_epoch(run), run.hyper.effective_batch
    if run.global_step and epoch and batch and not run.hyper.packing:
        return round(run.global_step * batch / epoch)
    return None


def last_epoch(run: RunArtifact) -> float | None:
    """Passes over the data at the last logged row."""
    epochs = [*(row.epoch for row in run.train_log), *(row.epoch for row in run.eval_log)]
    return max(filter(None, epochs), default=None)


def passes(audit: Audit) -> float:
    """Passes over the data: those made where the log says, else those asked for.

    Raises:
        CannotTell: neither is known.
    """
    run = audit.artifact
    made, planned = last_epoch(run), next(_planned_passes(audit), None)
    if planned is not None and (made is None or made >= _COMPLETE * planned):
        return planned
    if made is not None:
        return made
    raise CannotTell(
        "the run folder records neither epochs nor steps, batch size and rows to derive them from"
    )


def _planned_passes(audit: Audit) -> Iterator[float]:
    run = audit.artifact
    steps, batch, rows = run.hyper.max_steps, run.hyper.effective_batch, n_rows(audit)
    if not steps or steps < 0:
        if run.hyper.epochs is not None:
            yield run.hyper.epochs
    elif batch and rows and not run.hyper.packing:
        yield steps * batch / rows


def optimizer_steps(audit: Audit) -> int:
    """Optimizer steps taken, or planned where the run does not say how many were.

    Raises:
        CannotTell: neither is known.
    """
    run = audit.artifact
    if run.global_step:
        return run.global_step
    if run.train_log:
        return run.train_log[-1].step
    if run.hyper.max_steps and run.hyper.max_steps > 0:
        return run.hyper.max_steps
    epochs, batch, rows = run.hyper.epochs, run.hyper.effective_batch, n_rows(audit)
    if epochs and batch and rows and not run.hyper.packing:
        return max(1, round(epochs * rows / batch))
    raise CannotTell("the run folder records no optimizer steps")
