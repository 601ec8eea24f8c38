"""Text that the chat template leaves out or changes.

What it detects
    Turns whose text is not in the rendered row as it stands in the dataset: a thinking block that the
    template strips, a system turn that it drops, white space that it trims inside.

Why it matters
    What is trained on is not what the dataset says. Whoever looks for the cause of a behaviour in the rows
    looks at words that the model never saw. Medium: often the template means it.

What to do
    Read the named rows as rendered. Change the template, or the rows, until both agree.
"""

from __future__ import annotations

from collections.abc import Iterator

from gradian.checks.audit import Audit
from gradian.checks.registry import Need, check
from gradian.checks.row_findings import handed_on
from gradian.types import Finding

ID = "data.template_alters_text"


@check(
    ID,
    "Text that the chat template leaves out or changes",
    needs=(Need.DATASET, Need.TOKENIZER),
    addition=True,
)
def template_alters_text(audit: Audit) -> Iterator[Finding]:
    """Hand on what encoding found."""
    finding = audit.encoding.get(ID)
    if finding is not None:
        yield handed_on(finding, len(audit.examples))
