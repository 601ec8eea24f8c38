"""Liger kernels made the trainer forget the loss mask.

What it detects
    use_liger_kernel with a loss on answers only, in a trl that drops the mask in that case: `completion_only_loss`
    before 0.20, `assistant_only_loss` before 0.22. If trl's version is not on record, the check cannot tell.

Why it matters
    These versions keep only the columns that the fused loss reads, without a warning. The run then learns the
    prompts too, and attribution, which masks them, looks at another loss than training did.

What to do
    Upgrade to trl 0.22 or later, or set use_liger_kernel to false, and train again.
"""

from __future__ import annotations

from collections.abc import Iterator

from gradian.checks.audit import Audit
from gradian.checks.config._trl import (
    LIGER_KEEPS_ASSISTANT,
    LIGER_KEEPS_COMPLETION,
    masks_asked_for,
    trl_version,
)
from gradian.checks.registry import CannotTell, Need, check
from gradian.types import Finding, Severity

_KEPT_FROM = {
    "assistant_only_loss": LIGER_KEEPS_ASSISTANT,
    "completion_only_loss": LIGER_KEEPS_COMPLETION,
}


@check(
    "config.liger_ignores_mask",
    "Liger kernel with a loss mask that it drops",
    needs=(Need.RUN,),
    addition=True,
)
def liger_ignores_mask(audit: Audit) -> Iterator[Finding]:
    """Look for a mask that the trl of this run drops beside a Liger kernel."""
    run = audit.artifact
    masks = masks_asked_for(audit)
    if not masks or run.hyper.use_liger_kernel is False:
        return
    if run.hyper.use_liger_kernel is None:
        raise CannotTell("the run folder does not say whether Liger kernels were used")
    version = trl_version(run)
    lost = [mask for mask in masks if version < _KEPT_FROM[mask]]
    if not lost:
        return
    yield Finding(
        "config.liger_ignores_mask",
        Severity.HIGH,
        f"trl {run.versions['trl']} with use_liger_kernel drops the mask of `{lost[0]}`: "
        "the loss covered the prompts too",
        "The marks of the answers are removed from the dataset before training, and no warning is given.",
        "Upgrade to trl 0.22 or later, or set use_liger_kernel to false.",
        figures={"trl": run.versions["trl"], "masks": lost},
    )
