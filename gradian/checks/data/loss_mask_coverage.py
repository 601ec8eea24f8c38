"""How much of the data the loss is computed on.

What it detects
    Two things: that less than 2% of all tokens are targets; and that the run computes its loss on prompts as
    well, by its settings (train_on_inputs, completion_only_loss, assistant_only_loss) or because the rows are
    rendered conversations as raw text without a response marker.

Why it matters
    Below 2% nearly all of the compute goes into reading, the gradient is noisy, and most often the mask is
    wrong. Long documents with short answers are a healthy exception, so it is medium. A loss on the prompts
    teaches the model to write questions, which pulls on the same weights as the answers: medium where prompts
    are half of the tokens or more, else low.

What to do
    Compare the mask with the template. To leave prompts out set train_on_inputs: false, completion_only_loss:
    true or assistant_only_loss: true, whichever the trainer has.
"""

from __future__ import annotations

from collections.abc import Iterator

from gradian.checks.audit import Audit
from gradian.checks.registry import Need, check
from gradian.data.masks import markers_present
from gradian.runs.artifact import HyperParameters, RunArtifact
from gradian.types import Finding, Severity

ID = "data.loss_mask_coverage"


@check(ID, "Fraction of tokens the loss is computed on", needs=(Need.DATASET, Need.TOKENIZER))
def loss_mask_coverage(audit: Audit) -> Iterator[Finding]:
    """Compare the targets with all tokens, and the run's settings with the targets."""
    tokens = sum(len(row) for row in audit.encoded)
    supervised = sum(row.n_supervised for row in audit.encoded)
    if not tokens:
        return
    limits, coverage = audit.limits.data, supervised / tokens
    figures = {"supervised_tokens": supervised, "tokens": tokens, "coverage": coverage}
    # Where the length limit took the targets away, that is the fault, and data.completion_truncated tells it.
    whole = supervised + sum(row.truncated_supervised for row in audit.encoded)
    low = limits.low_mask_coverage
    if coverage < low and whole / max(1, int(audit.token_counts.sum())) < low:
        yield Finding(
            ID,
            Severity.MEDIUM,
            f"The loss is computed on {coverage:.2%} of the tokens ({supervised} of {tokens})",
            f"Less than {limits.low_mask_coverage:.0%} are targets. Either the answers are short beside their prompts, or the"
            " loss mask misses them.",
            "Look at the mask of a few rows; shorten the prompts, or give the rows more to learn.",
            figures={**figures, "count": supervised, "share": coverage},
        )
    setting = _trains_on_prompts(audit)
    if setting is not None:
        name, fix = setting
        prompts = 1.0 - coverage
        yield Finding(
            ID,
            Severity.MEDIUM if prompts >= limits.prompt_share_trained else Severity.LOW,
            f"The run computes its loss on prompts as well: 100% of the tokens, where answers are {coverage:.1%}",
            f"{name}: {tokens - supervised} of {tokens} tokens are prompts that the model learns to write.",
            fix,
            figures={**figures, "count": tokens, "share": 1.0, "prompt_share": prompts},
        )
    rendered = dict(markers_present(audit.examples))
    if rendered and not (audit.run and audit.run.hyper.response_marker):
        marker, count = next(iter(rendered.items()))
        yield Finding(
            ID,
            Severity.LOW,
            f"{count} of {len(audit.examples)} rows are rendered conversations as raw text, supervised whole",
            f"They hold the response marker {marker!r}. Raw text has no mask of its own: prompts are targets too unless the"
            " trainer masks by such a marker, and no run folder says that it does.",
            f"Mask by the marker (train_on_responses_only with response_part={marker!r}), or give the rows as messages.",
            tuple(
                example.id
                for example in audit.examples
                if example.text is not None and marker in example.text
            ),
            {**figures, "count": count, "share": count / len(audit.examples)},
        )


def _trains_on_prompts(audit: Audit) -> tuple[str, str] | None:
    run = audit.run
    if run is None or not any(len(example.messages) > 1 for example in audit.examples):
        return None
    hyper = run.hyper
    if _masks_otherwise(hyper):
        return None
    if hyper.train_on_inputs:
        return "train_on_inputs is true", "Set train_on_inputs: false."
    shapes = {example.shape for example in audit.examples if example.messages}
    if hyper.completion_only_loss is False and shapes != {"messages"}:
        return "completion_only_loss is false", "Set completion_only_loss: true."
    if _is_trl(run) and hyper.assistant_only_loss is False and "messages" in shapes:
        return "assistant_only_loss is false", (
            "Set assistant_only_loss: true, with a chat template that has `{% generation %}` blocks."
        )
    return None


def _is_trl(run: RunArtifact) -> bool:
    return run.trainer in ("trl", "unsloth")


def _masks_otherwise(hyper: HyperParameters) -> bool:
    return hyper.response_marker is not None or "CompletionOnly" in (hyper.data_collator or "")
