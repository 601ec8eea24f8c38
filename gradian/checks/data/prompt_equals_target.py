"""Answers that repeat the prompt.

What it detects
    Rows whose final answer is the last turn before it, case, white space and closing punctuation aside.

Why it matters
    The row teaches the model to echo. It is what a shifted or copied column looks like: then all rows are so.
    A few are greetings answered in kind. Low below 1% of the rows, medium from there, high from 10%. A system
    turn can ask for it (correct the text, add punctuation, leave it where nothing is wrong), so that rows with
    one count as high only when they repeat the prompt to the letter and are half of all rows.

What to do
    Check which column was used for the answer; remove the rows that are not meant so.
"""

from __future__ import annotations

from collections.abc import Iterator

from gradian.checks.audit import Audit
from gradian.checks.registry import Need, check
from gradian.checks.row_findings import by_share, excerpt, ids_at, row_figures, row_list
from gradian.checks.turn_keys import normalised
from gradian.types import Finding, Severity

_COLUMN = 3  # Echoes below which it is no column, but a greeting or two in a small file.
_COPIED = 0.5  # Share of literal echoes that no system turn explains.


@check("data.prompt_equals_target", "Target identical to the prompt", needs=(Need.DATASET,))
def prompt_equals_target(audit: Audit) -> Iterator[Finding]:
    """Compare the final answer with the turn before it."""
    examples = audit.examples
    found, unasked, literal = [], 0, 0
    for position, example in enumerate(examples):
        asked, said = example.prompt.strip(), example.target.strip()
        # The first characters settle most rows without normalising them.
        alike = asked and said and asked[0].casefold() == said[0].casefold()
        if alike and normalised(asked) == normalised(said):
            found.append(position)
            unasked += all(turn.role not in ("system", "developer") for turn in example.messages)
            literal += asked == said
    if not found:
        return
    share, high = len(found) / len(examples), audit.limits.data.echo_share_high
    copied = unasked >= high * len(examples) or literal >= _COPIED * len(examples)
    most = Severity.HIGH if copied and len(found) >= _COLUMN else Severity.MEDIUM
    yield Finding(
        "data.prompt_equals_target",
        by_share(share, (high, most), (high / 10, Severity.MEDIUM), otherwise=Severity.LOW),
        f"{len(found)} of {len(examples)} targets ({share:.1%}) only repeat the prompt",
        f"{row_list(found).capitalize()}; for example {excerpt(examples[found[0]].target)}.",
        "Check which column holds the answers, and remove rows that are not meant to echo.",
        ids_at(examples, found),
        row_figures(found, len(examples)),
    )
