"""Two beginning-of-sequence tokens in front of a row.

What it detects
    The text of a row begins with the tokenizer's BOS token, and the tokenizer adds one of its own when the
    text is tokenised as trainers do it (add_special_tokens=True). For raw text that is a fact of the row; for
    rows with turns it happens where a trainer renders first and tokenises afterwards, so it is passed over
    for trainers that do both in one call.

Why it matters
    The model is trained on a beginning that it never meets in use, and quality suffers a little on every
    answer. Medium for raw text, low for rendered turns.

What to do
    Tokenise with add_special_tokens=False, or take the BOS token out of the text or the template.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gradian.checks.audit import Audit
from gradian.checks.registry import Need, check
from gradian.checks.row_findings import ids_at, row_figures, row_list
from gradian.types import Finding, Severity

ID = "data.double_bos"
_TOKENISES_RENDERED_TEXT = ("unsloth", "transformers", "unknown")


@check(
    ID, "BOS written by template or text and added again", needs=(Need.DATASET, Need.TOKENIZER), addition=True
)
def double_bos(audit: Audit) -> Iterator[Finding]:
    """Ask the tokenizer whether it adds a BOS to a text that has one."""
    tokenizer: Any = audit.encoder.tokenizer if audit.encoder else None
    bos, bos_id = tokenizer.bos_token, tokenizer.bos_token_id
    if bos is None or tokenizer(f"{bos}a", add_special_tokens=True)["input_ids"][:2] != [bos_id, bos_id]:
        return
    total = len(audit.examples)
    raw = [e.position for e in audit.examples if e.text is not None and e.text.startswith(bos)]
    rendered = []
    if audit.run is None or audit.run.trainer in _TOKENISES_RENDERED_TEXT:
        # Gradian tokenises rendered text without special tokens: a BOS in front is the template's own.
        rendered = [
            e.position
            for e, row in zip(audit.examples, audit.encoded, strict=True)
            if e.messages and row.n_supervised and row.input_ids[0] == bos_id and tokenizer.chat_template
        ]
    for positions, severity, what in (
        (raw, Severity.MEDIUM, "begin with the text of a BOS token"),
        (rendered, Severity.LOW, "are rendered with a BOS token"),
    ):
        if positions:
            yield Finding(
                ID,
                severity,
                f"{len(positions)} of {total} rows {what}, and the tokenizer adds a second one",
                f"The token is {bos!r}: {row_list(positions)}. Gradian itself keeps one.",
                "Tokenise with add_special_tokens=False, or take the BOS token out of the text or the template.",
                ids_at(audit.examples, positions),
                row_figures(positions, total),
            )
