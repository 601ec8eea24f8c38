"""Nothing tells when training should have stopped.

What it detects
    eval_strategy is "no", or is not recorded and the log holds no evaluation; no eval rows are recorded, and no
    eval dataset is given.

Why it matters
    The training loss falls while the model memorises. Only rows it has not seen show when that begins, and
    `dynamics.overfitting` has nothing to read.

What to do
    Hold back 1 to 10% of the rows as an eval set, set eval_strategy to "steps", and pass the rows as
    --eval-dataset.
"""

from __future__ import annotations

from collections.abc import Iterator

from gradian.checks.audit import Audit
from gradian.checks.registry import CannotTell, Need, check
from gradian.types import Finding, Severity


@check("config.no_eval_set", "No eval set configured", needs=(Need.RUN,))
def no_eval_set(audit: Audit) -> Iterator[Finding]:
    """Look for anything that was evaluated."""
    run = audit.artifact
    if run.eval_log or run.hyper.eval_rows or audit.eval_dataset is not None:
        return
    strategy = run.hyper.eval_strategy
    if strategy is None and not run.has_log:
        raise CannotTell("the run folder holds neither an eval setting nor a log")
    if strategy not in (None, "no"):
        return
    yield Finding(
        "config.no_eval_set",
        Severity.LOW,
        f"The run evaluated nothing in {run.global_step or len(run.train_log)} steps (`eval_strategy` "
        f"{'is no' if strategy else 'is not set'})",
        "Memorising and learning look the same in a training loss.",
        'Set eval_strategy to "steps" with a held-out eval dataset.',
        figures={"eval_strategy": strategy, "evaluations": 0},
    )
