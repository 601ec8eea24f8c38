"""Chat rows for a tokenizer that has no chat template.

What it detects
    Rows with turns while the tokenizer has no chat template. Their turns are then joined as plain text and
    the whole text is supervised, the prompt included.

Why it matters
    Half of the signal goes into writing prompts, and what the rows are trained as is not what any chat client
    will send. High for rows of messages. Medium for pairs of prompt and answer alone, which a base model may
    well be trained on as plain text.

What to do
    Pass the tokenizer that the model was fine-tuned with (`--base-model`, or `tokenizer` in the config), or
    set tokenizer.chat_template before training.
"""

from __future__ import annotations

from collections.abc import Iterator

from gradian.checks.audit import Audit
from gradian.checks.registry import Need, check
from gradian.checks.row_findings import handed_on
from gradian.types import Finding, Severity

ID = "data.no_chat_template"


@check(ID, "Chat data but no chat template", needs=(Need.DATASET, Need.TOKENIZER))
def no_chat_template(audit: Audit) -> Iterator[Finding]:
    """Hand on what encoding found; pairs without roles weigh less than chats."""
    finding = audit.encoding.get(ID)
    if finding is not None:
        chats = any(example.shape == "messages" for example in audit.examples)
        yield handed_on(finding, len(audit.examples), Severity.HIGH if chats else Severity.MEDIUM)
