"""No seed is on record.

What it detects
    The run's settings were read and hold no seed.

Why it matters
    The seed fixes the adapter's start and the order of the rows. Without it the run cannot be repeated, and a
    retraining without the accused rows, which is the only proof of a verdict, differs in more than those rows.

What to do
    Set seed (and data_seed) to any number, and keep the run's settings with the adapter.
"""

from __future__ import annotations

from collections.abc import Iterator

from gradian.checks.audit import Audit
from gradian.checks.registry import CannotTell, Need, check
from gradian.runs.artifact import HyperParameters
from gradian.types import Finding, Severity


@check("config.seed_unset", "No seed recorded", needs=(Need.RUN,))
def seed_unset(audit: Audit) -> Iterator[Finding]:
    """Look for the seed."""
    run = audit.artifact
    if run.hyper == HyperParameters():
        raise CannotTell("no training settings were found in the run folder")
    if run.hyper.seed is not None:
        return
    yield Finding(
        "config.seed_unset",
        Severity.LOW,
        f"The {run.trainer} run records no `seed`",
        "The order of the rows and the adapter's start cannot be repeated.",
        "Set seed to a number, 42 for one, and train with it.",
        figures={"seed": None},
    )
