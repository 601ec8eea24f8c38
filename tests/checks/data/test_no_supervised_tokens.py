from __future__ import annotations

import pytest

from gradian.checks.audit import Audit
from tests.checks.data.rows import audit_rows, healthy, prose, qa
from tests.checks.fixtures import only, verdict

ID = "data.no_supervised_tokens"


def fires() -> Audit:
    # The recorded run: a limit that 292 of 800 prompts fill alone.
    return audit_rows(
        [*(qa(prose(i, 40), "Yes.") for i in range(292)), *(qa(f"{i}?", "No.") for i in range(508))],
        length=96,
    )


def silent() -> Audit:
    return audit_rows(healthy(40), tokens=True)


def test_292_of_800_rows_are_critical() -> None:
    finding = only(ID, fires())
    assert finding.severity.value == "critical"
    assert finding.title.startswith("292 of 800 examples")
    assert (finding.figures["count"], finding.figures["cut"]) == (292, 292)


@pytest.mark.parametrize(("n", "expected"), [(50, "critical"), (500, "high"), (1500, "medium")])
def test_a_stray_row_weighs_less_the_more_rows_there_are(n: int, expected: str) -> None:
    assert (
        verdict(ID, audit_rows([*(qa(str(i), "y") for i in range(n)), qa("?", "")], tokens=True)) == expected
    )
