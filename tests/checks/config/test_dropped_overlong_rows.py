from __future__ import annotations

import pytest

from gradian.checks.audit import Audit
from tests.checks.building import dataset, encoder, healthy_run
from tests.checks.fixtures import only, verdict

ID = "config.dropped_overlong_rows"


def texts(limit: int, fate: str | None, long: int = 1) -> Audit:
    rows = dataset({"text": "x" * (300 if i < long else 50)} for i in range(100))
    run = healthy_run(trainer="axolotl", overlong_rows=fate)
    return Audit(rows, None, run, encoder(limit), max_seq_length=limit)


def fires() -> Audit:
    return texts(200, "drop")


def silent() -> Audit:
    return texts(512, "drop")


@pytest.mark.parametrize(
    ("audit", "expected"),
    [
        (texts(200, "drop", long=5), "high"),
        (texts(200, "truncate"), "passed"),
        (texts(200, None), "skipped"),
        (texts(512, None), "passed"),
    ],
)
def test_only_a_trainer_that_drops_loses_rows(audit: Audit, expected: str) -> None:
    assert verdict(ID, audit) == expected


def test_the_rows_are_named() -> None:
    audit = fires()
    finding = only(ID, audit)
    assert finding.example_ids == (audit.examples[0].id,)
    assert "1 of 100 rows (1.0%) are over 200 tokens" in finding.title
