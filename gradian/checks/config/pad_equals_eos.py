"""Padding and the end of an answer are the same token.

What it detects
    The padding token is the end-of-sequence token, or one that the supervised part of rows holds, and the
    collator takes every such token for padding: transformers' DataCollatorForLanguageModeling and the old
    DataCollatorForCompletionOnlyLM do (high); of a collator that is not known it is a risk (low). The trainers'
    own collators (trl since 0.16, unsloth, axolotl, LLaMA-Factory) pad the labels, and then it does no harm.

Why it matters
    Such a collator sets the label of every padding token to -100, the end of each answer included. The model is
    never taught to stop, runs on to the length limit, and fails every metric that reads the whole answer.

What to do
    Set pad_token to a token that no row uses (a reserved one of the vocabulary), or train with
    DataCollatorForSeq2Seq, which pads labels with -100 without looking at ids.
"""

from __future__ import annotations

from collections.abc import Iterator

from gradian.checks.audit import Audit
from gradian.checks.config._trl import OWN_COLLATOR, trl_version
from gradian.checks.registry import CannotTell, Need, check
from gradian.checks.row_findings import excerpt
from gradian.runs.artifact import RunArtifact
from gradian.types import Finding, Severity

_COMPARES_IDS = {"DataCollatorForLanguageModeling", "DataCollatorForCompletionOnlyLM"}
_PADS_LABELS = {
    *(
        "DataCollatorForSeq2Seq",
        "DataCollatorWithPadding",
        "DataCollatorWithFlattening",
        "DefaultDataCollator",
    ),
    *("default_data_collator", "DataCollatorForSupervisedDataset"),
}
_OWN = {"gradian", "unsloth", "axolotl", "llamafactory"}


@check("config.pad_equals_eos", "pad_token is the eos_token", needs=(Need.RUN,))
def pad_equals_eos(audit: Audit) -> Iterator[Finding]:
    """Compare the two tokens, where the collator would confuse them."""
    run = audit.artifact
    collator = run.hyper.data_collator
    if audit.encoder is None:
        if _compares_ids(run) is False:
            return
        raise CannotTell("needs --base-model, to know the padding and the end token")
    tokenizer = audit.encoder.tokenizer
    pad = run.hyper.pad_token or tokenizer.pad_token
    pad_id = tokenizer.convert_tokens_to_ids(pad) if pad else None
    rows = [row.id for row in audit.encoded if (row.input_ids[row.supervised] == pad_id).any()]
    if pad is None or (pad != tokenizer.eos_token and not rows):
        return
    by_ids = _compares_ids(run)
    if by_ids is False:
        return
    role = "the end-of-sequence token" if pad == tokenizer.eos_token else "a token of the answers"
    yield Finding(
        "config.pad_equals_eos",
        Severity.HIGH if by_ids else Severity.LOW,
        f"`pad_token` is {role} ({excerpt(pad)})"
        + (f", which {excerpt(collator) if collator else 'the collator'} masks as padding" if by_ids else ""),
        (f"{len(rows)} rows have it among their targets. " if rows else "")
        + (
            "Its label is -100 wherever it stands."
            if by_ids
            else "What the collator does with it is not known."
        ),
        "Set pad_token to a token that no row uses, or train with DataCollatorForSeq2Seq.",
        tuple(rows),
        {"pad_token": pad, "eos_token": tokenizer.eos_token, "data_collator": collator, "count": len(rows)},
    )


def _compares_ids(run: RunArtifact) -> bool | None:
    """Whether the collator takes tokens for padding by their id; None when that is not known."""
    collator = run.hyper.data_collator
    if collator in _PADS_LABELS:
        return False
    if run.trainer == "trl" and collator in (None, "DataCollatorForLanguageModeling"):
        # trl's own class has the name of transformers' and pads labels instead. These two settings are younger.
        if run.hyper.packing_strategy is not None or run.hyper.assistant_only_loss is not None:
            return False
        return trl_version(run) < OWN_COLLATOR
    if collator in _COMPARES_IDS:
        return True
    if collator is None and run.trainer in _OWN:
        return False
    return None
