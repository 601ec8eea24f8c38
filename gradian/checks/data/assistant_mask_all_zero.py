"""assistant_only_loss with a chat template that marks no assistant text.

What it detects
    The run asks for a loss on assistant turns only, and the chat template has no `{% generation %}` block.
    The template looked at is the run folder's own where it has one, else the tokenizer's. A log with losses and
    gradients above zero settles it the other way: trl from 1.0 on trains with a template of its own that has
    the block, and saves the model's.

Why it matters
    The assistant mask comes from these blocks. Without one it is zero everywhere: the trainer supervises no
    token at all, and depending on the version it trains on nothing or stops with an error. Critical.
    Gradian's own mask does not need the blocks, so its scores would describe a training that did not take
    place.

What to do
    Use a chat template with `{% generation %}` around the assistant's text and its end token, or set
    assistant_only_loss: false and train on prompt-completion rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from gradian.checks.audit import Audit
from gradian.checks.registry import CannotTell, Need, check
from gradian.data.masks import has_generation_block
from gradian.jsonvalue import parse_json
from gradian.runs.artifact import LogRow
from gradian.types import Finding, Severity

ID = "data.assistant_mask_all_zero"
_MAX_BYTES = 4 * 1024 * 1024


@check(
    ID,
    "assistant_only_loss without generation blocks",
    needs=(Need.DATASET, Need.TOKENIZER, Need.RUN),
    addition=True,
)
def assistant_mask_all_zero(audit: Audit) -> Iterator[Finding]:
    """Look for the block in the template that training used."""
    asked = audit.artifact.hyper.assistant_only_loss
    if asked is None:
        raise CannotTell("the run folder does not say whether assistant_only_loss was set")
    if not asked or not any(example.shape == "messages" for example in audit.examples):
        return
    own = _run_template(audit.artifact.folder)
    template = own or getattr(audit.encoder and audit.encoder.tokenizer, "chat_template", None)
    if not isinstance(template, str) or has_generation_block(template):
        return
    if _trained(audit.artifact.train_log):
        return
    intended = sum(row.n_supervised for row in audit.encoded)
    tokens = sum(len(row) for row in audit.encoded)
    where = "the run folder's chat template" if own else "the tokenizer's chat template"
    yield Finding(
        ID,
        Severity.CRITICAL,
        f"assistant_only_loss with a template that has no generation block: 0 of {tokens} tokens supervised"
        f" (intended: {intended})",
        f"It was looked for in {where}. The trainer's assistant mask is zero everywhere, so nothing is learned.",
        "Put `{% generation %}` around the assistant's text and end token in the template, or set"
        " assistant_only_loss: false.",
        tuple(example.id for example in audit.examples if example.shape == "messages"),
        {
            "count": len(audit.examples),
            "share": 1.0,
            "trainer_supervised_tokens": 0,
            "intended_supervised_tokens": intended,
        },
    )


def _trained(log: Sequence[LogRow]) -> bool:
    # Without a target the loss is zero or not a number, and so is the gradient.
    seen = [(row.loss or 0.0, row.grad_norm or 0.0) for row in log]
    learning = sum(0 < loss < math.inf and 0 < norm < math.inf for loss, norm in seen)
    return learning > len(seen) / 2


def _run_template(folder: Path) -> str | None:
    # As text: it is never rendered here.
    written = folder / "chat_template.jinja"
    settings = folder / "tokenizer_config.json"
    try:
        if written.is_file() and written.stat().st_size <= _MAX_BYTES:
            return written.read_text(encoding="utf-8")
        if settings.is_file() and settings.stat().st_size <= _MAX_BYTES:
            read = parse_json(settings.read_text(encoding="utf-8"))
            template = read.get("chat_template") if isinstance(read, dict) else None
            return template if isinstance(template, str) else None
    except (OSError, ValueError):
        return None
    return None
