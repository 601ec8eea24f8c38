from __future__ import annotations

import dataclasses

import pytest

from gradian.checks.audit import Audit
from tests.checks.building import audit_run, encoder, pairs
from tests.checks.fixtures import only, verdict

ID = "config.capacity_vs_data"


def answers(n_parameters: int | None, rows: int = 10) -> Audit:
    # 40 characters an answer: ten tokens each by the estimate.
    run = audit_run(lora={"n_parameters": n_parameters})
    return dataclasses.replace(run, dataset=pairs(rows, lambda i: "x" * 40))


def fires() -> Audit:
    return answers(42_000_000)


def silent() -> Audit:
    return answers(99_999)


@pytest.mark.parametrize(
    ("audit", "expected"),
    [
        (answers(100_000), "low"),
        (answers(1_000_000), "medium"),
        (answers(None), "skipped"),
        (answers(10, rows=0), "skipped"),
    ],
)
def test_parameters_for_a_token_decide(audit: Audit, expected: str) -> None:
    assert verdict(ID, audit) == expected


def test_a_tokenizer_replaces_the_estimate() -> None:
    finding = only(ID, dataclasses.replace(fires(), encoder=encoder()))
    # 40 bytes and the end of the turn with its line break, ten times.
    assert 400 < finding.figures["supervised_tokens"] <= 420
    assert "counted by the tokenizer" in finding.evidence
