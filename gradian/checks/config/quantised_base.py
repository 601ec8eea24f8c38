"""The adapter's base model is a quantised one.

What it detects
    The base model's name says that its weights are quantised (`-bnb-4bit` and its like): medium. A base loaded
    in 4 bit under its own name, as QLoRA does, is information only.

Why it matters
    Gradian takes gradients on unquantised weights, which differ a little from those the adapter was trained
    against, and a `-bnb-4bit` repository given as --base-model cannot be used at all. The 16-bit repository has
    the same tokenizer and template.

What to do
    Pass the 16-bit repository as --base-model: the name without its `-bnb-4bit` ending.
"""

from __future__ import annotations

from collections.abc import Iterator

from gradian.checks.audit import Audit
from gradian.checks.registry import CannotTell, Need, check
from gradian.checks.row_findings import excerpt
from gradian.runs.base_names import full_precision, is_quantised
from gradian.types import Finding, Severity


@check(
    "config.quantised_base", "Base model recorded as a quantised repository", needs=(Need.RUN,), addition=True
)
def quantised_base(audit: Audit) -> Iterator[Finding]:
    """Look at the base model's name, and at how it was loaded."""
    run = audit.artifact
    trained_on = run.base_model
    if not trained_on:
        raise CannotTell("the run folder does not name the base model")
    if is_quantised(trained_on):
        full = full_precision(trained_on)
        yield Finding(
            "config.quantised_base",
            Severity.MEDIUM,
            f"The adapter was trained on a quantised base ({excerpt(trained_on)})",
            "Gradients on the 16-bit base differ a little from those of the quantised one that was trained.",
            f"Pass --base-model {full}."
            if full != trained_on
            else "Pass the 16-bit model that this one was made from as --base-model.",
            figures={"trained_on": trained_on, "full_precision": full if full != trained_on else None},
        )
    elif run.hyper.load_in_4bit:
        yield Finding(
            "config.quantised_base",
            Severity.INFO,
            f"{excerpt(trained_on)} was loaded in 4 bit for training",
            "Gradients on the unquantised base differ a little from those that training saw.",
            "Nothing needs to change; expect losses a little below those of the log.",
            figures={"trained_on": trained_on, "full_precision": trained_on},
        )
