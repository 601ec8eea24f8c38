from __future__ import annotations

from collections.abc import Sequence

import pytest

from gradian.checks.audit import Audit
from tests.checks.building import dataset
from tests.checks.data.rows import Row, audit_rows, chat, healthy, prose, qa
from tests.checks.fixtures import only, verdict

ID = "data.train_eval_contamination"


def against(rows: Sequence[Row], items: Sequence[Row]) -> Audit:
    return audit_rows(rows, eval_dataset=dataset(items, "eval.jsonl"))


def fires() -> Audit:
    rows = healthy(851)
    return against(rows, rows[100:164])


def silent() -> Audit:
    return against(healthy(200), healthy(64, first=1000))


def test_64_of_64_items_are_critical_and_the_training_rows_named() -> None:
    finding = only(ID, fires())
    assert finding.severity.value == "critical"
    assert finding.title.startswith(
        "64 of 64 eval items (100.0%) are in the training data (64 with the same answer"
    )
    assert finding.figures["rows"] == list(range(101, 165))
    assert finding.figures["eval_rows"] == list(range(1, 65))


ROWS = healthy(200)
OTHERS = healthy(9, first=1000)
TEXT = prose(3, 90)


@pytest.mark.parametrize(
    ("rows", "item", "kind", "row"),
    [
        (ROWS, {"question": ROWS[4]["prompt"].upper(), "answer": ROWS[4]["completion"]}, "same", 5),
        ([*ROWS, chat("One?", "Two.", "Three?", "Four.")], qa("One?", "Two."), "same", 201),
        ([*ROWS, chat("One?", "Two.", system="Be brief.")], qa("One?", "Two."), "same", 201),
        ([*ROWS, qa("Tell me.", TEXT)], qa("Tell me this.", f"{TEXT} again"), "near", 201),
        ([*ROWS, {"text": TEXT}], {"text": TEXT}, "same", 201),
    ],
)
def test_the_kind_of_the_leak_is_told(rows: list[Row], item: Row, kind: str, row: int) -> None:
    finding = only(ID, against(rows, [*OTHERS, item]))
    assert {name: finding.figures[name] for name in ("same", "near")} == {"same": 0, "near": 0, kind: 1}
    assert (finding.figures["rows"], finding.figures["eval_rows"]) == ([row], [10])


def test_severity_follows_the_share_and_likeness_alone_is_never_critical() -> None:
    rows = healthy(400)
    assert verdict(ID, against(rows, [rows[0], *healthy(199, first=1000)])) == "medium"
    assert verdict(ID, against(rows, [*rows[:4], *healthy(196, first=1000)])) == "high"
    other = [qa(row["prompt"], f"{row['completion']} again") for row in rows[:50]]
    assert verdict(ID, against([qa(r["prompt"], r["completion"]) for r in rows], other)) == "passed"
    changed = [qa(f"{row['prompt']} now", row["completion"]) for row in rows[:50]]
    assert verdict(ID, against(rows, changed)) == "high"


def test_a_long_template_in_common_is_no_leak() -> None:
    def rows(first: int, n: int) -> list[Row]:
        return [
            qa(f"{prose(1, 300)} Text {i}: {prose(i, 4)}", prose(i + 7, 2)) for i in range(first, first + n)
        ]

    assert verdict(ID, against(rows(0, 200), rows(1000, 20))) == "info"
