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


def test_rows_that_share_a_passage_and_not_the_question_are_no_leak() -> None:
    def asked(passage: int, i: int, said: str) -> Row:
        return qa(f"{prose(passage, 200)} How many of the {prose(10_000 + i, 2)} are left?", said)

    rows = [asked(k, 8 * k + j, f"{prose(8 * k + j, 3)}.") for k in range(20) for j in range(8)]
    items = [asked(k, 900 + k, f"{prose(900 + k, 3)}.") for k in range(20)]
    assert verdict(ID, against(rows, items)) == "info"
    reworded = [qa(row["prompt"].replace("How many", "Say how many"), row["completion"]) for row in rows[::8]]
    assert verdict(ID, against(rows, reworded)) == "high"


def test_rows_that_share_worked_examples_and_a_label_are_no_leak() -> None:
    def labelled(i: int) -> Row:
        return qa(f"{prose(i % 12, 200)} Text: {prose(500 + i, 4)} Label:", ("good", "bad")[i % 5 % 2])

    assert (
        verdict(ID, against([labelled(i) for i in range(180)], [labelled(i) for i in range(180, 220)]))
        == "info"
    )
    # Alone with its words, a row with one of them exchanged is a copy.
    alone = [*healthy(100), *(qa(f"{prose(i, 90)} Label:", "good") for i in range(5))]
    copy = qa(f"{prose(1, 90).rsplit(' ', 1)[0]} other Label:", "good")
    assert verdict(ID, against(alone, [copy, *healthy(19, first=1000)])) == "high"
