"""The log has hardly any rows.

What it detects
    The log holds fewer than `min_logged_steps` (10) training rows.

Why it matters
    Spikes, plateaus and overfitting show in the run of the losses. With a handful of rows the other checks of
    the log pass because there is nothing to see.

What to do
    Set logging_steps so that there are at least 50 rows; 1 costs next to nothing in a short run.
"""

from __future__ import annotations

from collections.abc import Iterator

from gradian.checks.audit import Audit
from gradian.checks.dynamics._log import logged
from gradian.checks.registry import Need, check
from gradian.types import Finding, Severity

_ROWS_WANTED = 50


@check("dynamics.too_few_steps", "Barely any logged steps", needs=(Need.RUN,))
def too_few_steps(audit: Audit) -> Iterator[Finding]:
    """Count the rows."""
    run, least = logged(audit), audit.limits.dynamics.min_logged_steps
    rows = len(run.train_log)
    if rows >= least:
        return
    steps = run.global_step or max((row.step for row in run.train_log), default=0)
    yield Finding(
        "dynamics.too_few_steps",
        Severity.LOW,
        f"The log has {rows} training row(s) for {steps} steps",
        f"Fewer than {least} say little about how training went.",
        f"Set logging_steps to {max(1, steps // _ROWS_WANTED)}.",
        figures={"rows": rows, "steps": steps},
    )
