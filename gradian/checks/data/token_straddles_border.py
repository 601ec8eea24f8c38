"""Tokens that lie on both sides of an answer's border.

What it detects
    Tokens that hold characters of the prompt and of the answer, because the tokenizer merges across the
    border.

Why it matters
    A trainer that counts prompt tokens masks such a token or shifts the mask by one; Gradian counts it as a
    target. Low: it is one token a row.

What to do
    End the prompt without white space and let the answer begin with it, or use a template that puts a special
    token in between.
"""

from __future__ import annotations

from collections.abc import Iterator

from gradian.checks.audit import Audit
from gradian.checks.registry import Need, check
from gradian.checks.row_findings import handed_on
from gradian.types import Finding

ID = "data.token_straddles_border"


@check(
    ID,
    "Tokens that lie on both sides of an answer's border",
    needs=(Need.DATASET, Need.TOKENIZER),
    addition=True,
)
def token_straddles_border(audit: Audit) -> Iterator[Finding]:
    """Hand on what encoding found."""
    finding = audit.encoding.get(ID)
    if finding is not None:
        yield handed_on(
            finding,
            len(audit.examples),
            fix="End the prompt without white space and let the answer begin with it, or put a special token in between.",
        )
