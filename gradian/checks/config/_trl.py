"""What trl does with a loss mask, by version; read in its source at 0.15, 0.16, 0.17, 0.19.1, 0.20, 0.22 and 1.0."""

from __future__ import annotations

import re

from gradian.checks.audit import Audit
from gradian.checks.registry import CannotTell
from gradian.runs.artifact import RunArtifact

Version = tuple[int, int]

OWN_COLLATOR: Version = (0, 16)
"""The first with a collator of its own, which pads labels; before, transformers' collator compares ids."""
PACKING_KEEPS_MASKS: Version = (0, 20)
"""The first whose packing keeps `completion_mask` and `assistant_masks` (issue 3728)."""
LIGER_KEEPS_COMPLETION: Version = (0, 20)
"""The first that keeps `completion_mask` beside a Liger kernel (issue 3484)."""
LIGER_KEEPS_ASSISTANT: Version = (0, 22)
"""The first that keeps `assistant_masks` too (issue 3781)."""
BOUNDED_PACKING: Version = (0, 19)
"""The first that knows a packing whose rows do not attend to each other; it is its default from here on."""
BOUNDED_STRATEGIES = {"ffd", "bfd", "bfd_split", "bfd-requeue"}


def trl_version(run: RunArtifact) -> Version:
    """Major and minor version of the trl that trained.

    Raises:
        CannotTell: the run does not say.
    """
    found = re.match(r"(\d+)\.(\d+)", run.versions.get("trl", ""))
    if not found:
        raise CannotTell(
            "the run folder does not record which trl trained it, and trl versions differ in this"
        )
    return int(found[1]), int(found[2])


def masks_asked_for(audit: Audit) -> tuple[str, ...]:
    """The settings that narrow the loss to answers: `assistant_only_loss`, `completion_only_loss`, or both.

    trl narrows prompt/completion rows unless told not to, so such rows count where the setting is unset.
    """
    run = audit.artifact
    wanted = ["assistant_only_loss"] if run.hyper.assistant_only_loss else []
    pairs = audit.dataset is not None and "prompt_completion" in audit.dataset.shapes
    by_default = run.hyper.completion_only_loss is None and run.trainer in ("trl", "unsloth") and pairs
    if run.hyper.completion_only_loss or by_default:
        wanted.append("completion_only_loss")
    return tuple(wanted)


def splits_rows(run: RunArtifact) -> bool:
    """Whether packing cuts a long row in pieces and trains on all of them, instead of dropping its end."""
    if not run.hyper.packing or run.trainer not in ("trl", "unsloth", "transformers"):
        return False
    strategy = run.hyper.packing_strategy
    if strategy is not None:
        return strategy in ("wrapped", "bfd_split", "bfd-requeue")
    try:
        return trl_version(run) < BOUNDED_PACKING
    except CannotTell:
        return False
