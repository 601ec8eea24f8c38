"""Chat template that writes the date.

What it detects
    A template that reads the clock (`strftime_now`): rendered on two days, a row gives two texts.

Why it matters
    The same command trains on other tokens tomorrow, in a system turn that the rows do not have, and the
    model meets a third date in use. Low: the effect is small, and reproducibility suffers more than quality.
    Gradian renders with one fixed date.

What to do
    Pass `date_string` to the template, or write the system turn into the rows.
"""

from __future__ import annotations

from collections.abc import Iterator

from gradian.checks.audit import Audit
from gradian.checks.registry import Need, check
from gradian.checks.row_findings import handed_on
from gradian.types import Finding

ID = "data.template_depends_on_date"


@check(ID, "Chat template that writes the date", needs=(Need.DATASET, Need.TOKENIZER), addition=True)
def template_depends_on_date(audit: Audit) -> Iterator[Finding]:
    """Hand on what encoding found."""
    finding = audit.encoding.get(ID)
    if finding is not None:
        date = finding.figures["date"]
        yield handed_on(
            finding,
            len(audit.examples),
            title=f"The chat template writes the date of the day (rendered as of {date})",
        )
