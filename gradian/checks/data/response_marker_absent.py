"""A response marker that is not in the rows.

What it detects
    The run masks everything before a response marker (train_on_responses_only, a completion-only collator),
    and rows do not hold it: another template's marker, or one whose token ids do not occur although its text
    does, because the tokenizer merges its edge with what stands beside it.

Why it matters
    A trainer that does not find the marker masks the whole row. With the wrong template that is every row:
    loss 0 or NaN, or a model that learned nothing at all. Critical when no row has the marker, high from 5%
    of the rows, else medium.

What to do
    Set the marker to the one that occurs in the rows (the finding names it), with the white space that
    belongs to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from gradian.checks.audit import Audit
from gradian.checks.registry import CannotTell, Need, check
from gradian.checks.row_findings import by_share, ids_at, row_figures, row_list
from gradian.data.masks import KNOWN_RESPONSE_MARKERS
from gradian.types import Example, Finding, Severity

ID = "data.response_marker_absent"
_HIGH = 0.05


@check(ID, "Response marker not found in the rows", needs=(Need.DATASET, Need.RUN), addition=True)
def response_marker_absent(audit: Audit) -> Iterator[Finding]:
    """Look for the marker in the text of each row, and for its ids where there is a tokenizer."""
    marker = audit.artifact.hyper.response_marker
    if not marker:
        raise CannotTell("the run folder records no response marker")
    texts = {e.position: text for e in audit.examples if (text := _plain_text(e)) is not None}
    tokenizer = audit.encoder.tokenizer if audit.encoder else None
    if not texts and tokenizer is None:
        raise CannotTell("rows with turns need the chat template: pass --base-model")
    if not texts and tokenizer is not None:
        texts = {row.position: tokenizer.decode(row.input_ids) for row in audit.encoded}
    absent = [position for position, text in texts.items() if marker not in text]
    split: list[int] = []
    if tokenizer is not None:
        pattern = _pattern(tokenizer(marker, add_special_tokens=False)["input_ids"])
        present = [position for position, text in texts.items() if marker in text]
        for start in range(0, len(present), 1000):
            part = present[start : start + 1000]
            ids = tokenizer([texts[position] for position in part], add_special_tokens=False)["input_ids"]
            split += [at for at, row in zip(part, ids, strict=True) if not _holds(row, pattern)]
    missing = sorted([*absent, *split])
    if not missing:
        return
    total, share = len(texts), len(missing) / len(texts)
    found = total - len(missing)
    severity = by_share(share, (1.0, Severity.CRITICAL), (_HIGH, Severity.HIGH), otherwise=Severity.MEDIUM)
    counts = [(known, sum(known in text for text in texts.values())) for known in KNOWN_RESPONSE_MARKERS]
    others = sorted(((n, known) for known, n in counts if n and known != marker), reverse=True)
    masked = "every label is masked" if not found else "the labels of the other rows are all masked"
    seen = f" {len(split)} hold its text, but not its token ids." if split else ""
    listed = " ".join(f"{known!r} is in {n} of {total}." for n, known in others[:3])
    best = f"Set the response marker to {others[0][1]!r}." if others and absent else ""
    yield Finding(
        ID,
        severity,
        f"The response marker is found in {found} of {total} rows: {masked}",
        f"The run looks for {marker!r}.{seen} {listed} Without it: {row_list(missing)}.",
        best or "Set the response marker to a text that the rows hold, cut where the tokenizer cuts.",
        ids_at(audit.examples, missing),
        row_figures(missing, total, found=found, split=len(split), markers={known: n for n, known in others}),
    )


def _plain_text(example: Example) -> str | None:
    # What a trainer without a template tokenises: raw text, or prompt and completion joined.
    if example.text is not None:
        return example.text
    if example.shape == "prompt_completion":
        return "".join(turn.content for turn in example.messages)
    return None


def _pattern(ids: Sequence[int]) -> bytes:
    return np.asarray(ids, dtype="<i4").tobytes()


def _holds(ids: Sequence[int], pattern: bytes) -> bool:
    # A search in bytes, which may hit between two ids: only a hit on a border of ids counts.
    data, at = _pattern(ids), -1
    while (at := data.find(pattern, at + 1)) >= 0:
        if at % 4 == 0:
            return True
    return False
