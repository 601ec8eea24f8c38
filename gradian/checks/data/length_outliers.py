"""Rows far longer than the rest.

What it detects
    Rows longer than eight times the median row and than 512 tokens. Without a tokenizer four characters count
    as one token.

Why it matters
    One such row decides the memory of its batch and, where the loss is averaged over tokens, drowns the rows
    beside it. Mostly it is a document pasted whole, or a loop of some generator. Row lengths spread widely in
    healthy data, so the factor is large, and short rows are no matter at all: low, or medium where the
    outliers hold a quarter of all tokens.

What to do
    Read the named rows. Shorten, split or remove those that are not meant, or set max_seq_length.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gradian.checks.audit import Audit
from gradian.checks.registry import Need, check
from gradian.checks.row_findings import counted, ids_at, row_figures, row_list
from gradian.checks.turn_keys import row_text
from gradian.types import Finding, Severity

_CHARACTERS_PER_TOKEN = 4
_HEAVY = 0.25


@check("data.length_outliers", "Extremely long examples", needs=(Need.DATASET,))
def length_outliers(audit: Audit) -> Iterator[Finding]:
    """Compare row lengths with their median."""
    if audit.has(Need.TOKENIZER):
        unit, lengths = "tokens", audit.token_counts
    else:
        unit = "tokens (estimated from characters)"
        characters = [len(row_text(example)) for example in audit.examples]
        lengths = np.array(characters, dtype=np.int64) // _CHARACTERS_PER_TOKEN
    if not len(lengths):
        return
    limits, median = audit.limits.data, float(np.median(lengths))
    border = max(limits.length_outlier_ratio * median, limits.length_outlier_tokens)
    found = np.flatnonzero(lengths > border)
    if not len(found):
        return
    held = float(lengths[found].sum() / lengths.sum())
    longest = int(lengths.max())
    yield Finding(
        "data.length_outliers",
        Severity.MEDIUM if held >= _HEAVY else Severity.LOW,
        f"{counted(len(found), 'row is', 'rows are')} far longer than the rest:"
        f" up to {longest} {unit}, median {median:g}",
        f"They are longer than {border:g} tokens and hold {held:.1%} of all tokens: {row_list(found)}.",
        f"Shorten, split or remove these rows; max_seq_length: {int(border)} would cut them there.",
        ids_at(audit.examples, found),
        row_figures(
            found,
            len(lengths),
            longest=longest,
            median=median,
            tokens_share=held,
            tokenized="est" not in unit,
        ),
    )
