from __future__ import annotations

import time

import pytest

from gradian.checks.audit import Audit
from gradian.checks.data.format_inconsistency import target_format
from tests.checks.data.rows import audit_rows, healthy, qa
from tests.checks.fixtures import only, verdict

ID = "data.format_inconsistency"


def fires() -> Audit:
    return audit_rows(
        [*(qa(f"City {i}", f'{{"city": {i}}}') for i in range(97)), qa("City", "Rome"), qa("C", "{1")]
    )


def silent() -> Audit:
    asked = [qa(f"As JSON: {i}", f'{{"city": {i}}}') for i in range(30)]
    return audit_rows([*healthy(70), *asked, *(qa(f"City {i}", f"[{i}]") for i in range(9))])


def test_strays_among_json_are_named_broken_json_too() -> None:
    finding = only(ID, fires())
    assert finding.severity.value == "medium"
    assert finding.figures["rows"] == [98, 99]
    assert finding.figures["formats"] == {"json": 97, "prose": 2}


def test_json_that_nobody_asked_for_counts_from_a_tenth() -> None:
    rows = [*healthy(80), *(qa(f"City {i}", f"[{i}]") for i in range(20))]
    assert only(ID, audit_rows(rows)).figures["count"] == 20
    assert verdict(ID, audit_rows(rows[:85])) == "passed"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"a": [1]}', "json"),
        (" [1, 2]\n", "json"),
        ("{not json}", "prose"),
        ("[" * 5000 + "]" * 5000, "prose"),
        ("```json\n{}\n```", "fenced"),
        ("```a``` and ```b```", "prose"),
        ('<p class="x">text</p>', "markup"),
        ("<a.b>text</a>", "markup"),
        ("<a.b><c></a.b>", "markup"),
        ("<ab>text</a>", "prose"),
        ("<a <b>text</a>", "prose"),
        ("<a></>", "prose"),
        ("<a></a", "prose"),
        ("</a>", "prose"),
        ("<think> so", "prose"),
        ("7", "prose"),
    ],
)
def test_formats(text: str, expected: str) -> None:
    assert target_format(text) == expected


@pytest.mark.parametrize(
    "text", ["<" + "a." * 100_000 + " >", "<a" * 100_000 + ">", "<a>" * 70_000, "<a" + ">" * 200_000]
)
def test_an_answer_of_half_a_tag_is_prose_and_costs_no_time(text: str) -> None:
    start = time.process_time()
    assert target_format(text) == "prose"
    assert time.process_time() - start < 1
