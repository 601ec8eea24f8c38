from __future__ import annotations

from dataclasses import replace

from gradian.checks.audit import Audit
from tests.checks.building import encoder
from tests.checks.data.rows import audit_rows, healthy, prose, qa
from tests.checks.fixtures import only, verdict

ID = "data.length_outliers"


def fires() -> Audit:
    return audit_rows([*healthy(200), qa("All of it.", prose(1, 3000))])


def silent() -> Audit:
    # Ten times the median, and still short.
    return audit_rows([*(qa(f"{i}?", "Yes.") for i in range(200)), qa("Why?", prose(1, 60))])


def test_the_long_row_is_named_with_its_length_and_the_median() -> None:
    finding = only(ID, fires())
    assert finding.figures["rows"] == [201]
    assert finding.figures["longest"] > 8 * finding.figures["median"]
    assert not finding.figures["tokenized"]


def test_with_a_tokenizer_tokens_are_counted() -> None:
    finding = only(ID, replace(fires(), encoder=encoder()))
    assert finding.figures["tokenized"]
    assert finding.figures["longest"] > 15_000


def test_outliers_that_hold_much_of_the_data_weigh_more() -> None:
    assert verdict(ID, audit_rows([*healthy(200), qa("All of it.", prose(1, 30_000))])) == "medium"
