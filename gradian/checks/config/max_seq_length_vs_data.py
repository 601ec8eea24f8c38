"""The length limit is below what the rows need.

What it detects
    The limit is below the `length_percentile` (95th) percentile of the rows' lengths in tokens. Packing that
    splits long rows over several blocks (`wrapped`, `bfd_split`) loses nothing and is not judged.

Why it matters
    Rows are cut at the end, where the answer is, so the model learns answers that stop half way; other trainers
    drop such rows. Neither shows in a log. Recorded run: a limit of 48 against a 95th percentile of 200 tokens
    cut the answer of all 800 rows and left 292 with nothing to learn (high).

What to do
    Raise the limit (max_length in trl, cutoff_len in LLaMA-Factory, sequence_len in axolotl) to the longest row,
    or shorten or split the longest rows.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gradian.checks.audit import Audit
from gradian.checks.config._trl import splits_rows
from gradian.checks.registry import CannotTell, Need, check
from gradian.types import Finding, Severity

_MULTIPLE = 64


@check(
    "config.max_seq_length_vs_data",
    "max_seq_length shorter than the data needs",
    needs=(Need.DATASET, Need.TOKENIZER, Need.LENGTH),
)
def max_seq_length_vs_data(audit: Audit) -> Iterator[Finding]:
    """Compare the limit with the percentile of row lengths."""
    limit, percentile, lengths = (
        audit.max_seq_length,
        audit.limits.config.length_percentile,
        audit.token_counts,
    )
    if limit is None or not len(lengths):
        raise CannotTell("the dataset has no rows")
    if audit.run is not None and splits_rows(audit.run):
        return
    # A length that occurs: between two rows there is nothing to interpolate.
    needed = int(np.percentile(lengths, percentile, method="inverted_cdf"))
    if limit >= needed:
        return
    longer = np.flatnonzero(lengths > limit)
    longest = int(lengths.max())
    yield Finding(
        "config.max_seq_length_vs_data",
        Severity.HIGH,
        f"`max_seq_length` is {limit}, but the rows' p{percentile:g} length is {needed} tokens",
        f"{len(longer)} of {len(lengths)} rows are longer than the limit; the longest has {longest} tokens.",
        f"Raise {audit.length_setting} to {-(-longest // _MULTIPLE) * _MULTIPLE} (at least {needed}).",
        tuple(audit.encoded[i].id for i in longer),
        {
            "max_seq_length": limit,
            "percentile": percentile,
            "needed": needed,
            "longest": longest,
            "count": len(longer),
        },
    )
