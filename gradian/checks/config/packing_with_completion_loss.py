"""Packed rows and a loss on the answers only, in a trainer that cannot do both.

What it detects
    Rows were packed, and the loss was to cover answers only (`assistant_only_loss`, `completion_only_loss`, or
    prompt/completion rows). In trl before 0.20 packing drops the mask: high. `wrapped` packing (the only one
    before 0.19), and LLaMA-Factory's packing other than neat_packing, lets rows attend to the rows before them:
    medium. From 0.20 on with `bfd` there is nothing to say; nor for axolotl, which bounds attention itself. If
    trl's version is not on record, the check cannot tell.

Why it matters
    Without its mask the run learns the prompts too, so the model writes users' turns; `wrapped` also cuts rows in
    two and gives an answer the context of a stranger's question. Attribution masks rows one by one, so it then
    looks at another loss than training did.

What to do
    Use trl 0.20 or later with packing_strategy "bfd", or set packing to false.
"""

from __future__ import annotations

from collections.abc import Iterator

from gradian.checks.audit import Audit
from gradian.checks.config._trl import (
    BOUNDED_PACKING,
    BOUNDED_STRATEGIES,
    PACKING_KEEPS_MASKS,
    masks_asked_for,
    trl_version,
)
from gradian.checks.registry import CannotTell, Need, check
from gradian.checks.row_findings import excerpt
from gradian.types import Finding, Severity

ID = "config.packing_with_completion_loss"


@check(ID, "Packing combined with completion-only loss", needs=(Need.RUN,))
def packing_with_completion_loss(audit: Audit) -> Iterator[Finding]:
    """Look at what the trainer's version does with masks and borders of packed rows."""
    run = audit.artifact
    if run.trainer == "llamafactory":
        yield from _llamafactory(audit)
        return
    masks = masks_asked_for(audit)
    if not masks or run.hyper.packing is False or run.trainer == "axolotl":
        return
    if run.hyper.packing is None:
        raise CannotTell("the run folder does not say whether rows were packed")
    version = trl_version(run)
    shown, strategy = run.versions["trl"], run.hyper.packing_strategy
    if version < PACKING_KEEPS_MASKS:
        yield Finding(
            ID,
            Severity.HIGH,
            f"Packing in trl {shown} drops the mask of `{masks[0]}`: the loss covered the prompts too",
            "Before trl 0.20 only the token ids of a packed row are kept, not the marks of its answers.",
            'Upgrade to trl 0.20 or later (packing_strategy "bfd"), or set packing to false.',
            figures={"trl": shown, "masks": list(masks), "packing_strategy": strategy, "fault": "mask_lost"},
        )
    bounded = strategy in BOUNDED_STRATEGIES if strategy else version >= BOUNDED_PACKING
    if not bounded:
        yield _attends(f"trl {shown}", strategy or "wrapped", 'Set packing_strategy to "bfd"')


def _llamafactory(audit: Audit) -> Iterator[Finding]:
    hyper = audit.artifact.hyper
    if hyper.packing and not hyper.train_on_inputs and "neat" not in (hyper.packing_strategy or ""):
        yield _attends("LLaMA-Factory", hyper.packing_strategy, "Set neat_packing to true")


def _attends(trainer: str, strategy: str | None, fix: str) -> Finding:
    return Finding(
        ID,
        Severity.MEDIUM,
        f"{excerpt(strategy) + ' packing' if strategy else 'Packing'} in {trainer} lets each row attend to the rows packed before it",
        "An answer was learnt with strangers' conversations as its context, and rows at a block's border are cut "
        "in two.",
        f"{fix}, or packing to false.",
        figures={"trainer": trainer, "packing_strategy": strategy, "fault": "rows_attend"},
    )
