"""The loss is NaN or infinite.

What it detects
    A training or eval loss in the log is NaN or infinite. transformers' trainers leave such losses out of the
    mean they log unless logging_nan_inf_filter is false; then a log without them proves nothing, and the check
    says so instead of passing.

Why it matters
    One NaN in a loss makes every weight of the adapter NaN at the next step, or, where a batch has no supervised
    token, means that the step trained on nothing. Either way the adapter is not what the settings describe.

What to do
    Look at the rows of that step (empty answers, a length limit that cuts them off), train in bf16, and lower
    the learning rate. Set logging_nan_inf_filter to false, so that the log shows it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from gradian.checks.audit import Audit
from gradian.checks.dynamics._log import logged
from gradian.checks.registry import CannotTell, Need, check
from gradian.types import Finding, Severity

# Their arguments have logging_nan_inf_filter true unless the user says otherwise.
_FILTERS_BY_DEFAULT = {"transformers", "trl", "axolotl", "llamafactory"}


@check("dynamics.nan_loss", "NaN or inf loss", needs=(Need.RUN,))
def nan_loss(audit: Audit) -> Iterator[Finding]:
    """Look for losses that are not finite."""
    run = logged(audit)
    train = [row.step for row in run.train_log if row.loss is not None and not math.isfinite(row.loss)]
    evals = [row.step for row in run.eval_log if row.loss is not None and not math.isfinite(row.loss)]
    hidden = run.hyper.logging_nan_inf_filter
    if hidden is None:
        hidden = run.trainer in _FILTERS_BY_DEFAULT
    if train or evals:
        first = min(train + evals)
        yield Finding(
            "dynamics.nan_loss",
            Severity.CRITICAL,
            f"The loss is NaN or infinite from step {first} on ({len(train)} training and {len(evals)} eval rows)",
            f"{len(train)} of {len(run.train_log)} training rows and {len(evals)} of {len(run.eval_log)} eval rows."
            + (" The trainer hides NaN in its training losses, so there may be more." if hidden else ""),
            f"Look at the rows of step {first}; set bf16 to true and lower learning_rate.",
            figures={"step": first, "train_rows": len(train), "eval_rows": len(evals)},
        )
    elif hidden:
        raise CannotTell(
            "logging_nan_inf_filter leaves NaN losses out of the log, so it could not have shown any; "
            "train with it set to false"
        )
    elif not any(row.loss is not None for row in run.train_log):
        raise CannotTell("the log holds no training losses")
