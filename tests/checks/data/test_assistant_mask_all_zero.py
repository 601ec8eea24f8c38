from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gradian.checks.audit import Audit
from gradian.runs.artifact import RunArtifact
from tests.checks.building import healthy_run, train_log
from tests.checks.data.rows import audit_rows, case_audit, chat, healthy
from tests.checks.fixtures import only, verdict

ID = "data.assistant_mask_all_zero"
MARKED = "{% generation %}{{ x }}{% endgeneration %}"


def masked_run(**changes: Any) -> RunArtifact:
    """A run of which no log is left, as in the case."""
    return healthy_run(**{"assistant_only_loss": True, "train_log": (), **changes})


def fires() -> Audit:
    return case_audit("21-no-generation-block", run=masked_run())


def silent() -> Audit:
    return case_audit("22-terminator-outside-mask", run=masked_run())


def test_the_trainer_supervises_nothing_of_what_was_intended() -> None:
    finding = only(ID, fires())
    assert finding.severity.value == "critical"
    assert finding.figures["trainer_supervised_tokens"] == 0
    assert finding.figures["intended_supervised_tokens"] == 7


@pytest.mark.parametrize(
    ("file", "text", "expected"),
    [
        ("chat_template.jinja", MARKED, "passed"),
        ("tokenizer_config.json", json.dumps({"chat_template": MARKED}), "passed"),
        ("tokenizer_config.json", "{", "critical"),
        ("chat_template.jinja", "{{ messages }}", "critical"),
    ],
)
def test_the_run_folders_own_template_decides(tmp_path: Path, file: str, text: str, expected: str) -> None:
    (tmp_path / file).write_text(text)
    run = masked_run(folder=tmp_path)
    assert verdict(ID, audit_rows([chat("Hi", "Hello.")], tokens=True, run=run)) == expected


@pytest.mark.parametrize(("asked", "expected"), [(False, "passed"), (None, "skipped")])
def test_a_run_that_does_not_ask_for_it(asked: bool | None, expected: str) -> None:
    run = healthy_run(assistant_only_loss=asked)
    assert verdict(ID, audit_rows([chat("Hi", "Hello.")], tokens=True, run=run)) == expected


def test_pairs_have_a_mask_of_their_own() -> None:
    assert verdict(ID, audit_rows(healthy(2), tokens=True, run=masked_run())) == "passed"


@pytest.mark.parametrize(
    ("losses", "norms", "expected"),
    [
        ([2.0, 1.5, 1.2], [0.5, 0.4, 0.0], "passed"),
        ([0.0, 0.0, 0.0], [0.5, 0.4, 0.3], "critical"),
        ([2.0, 1.5, 1.2], [math.nan, math.nan, 0.4], "critical"),
        ([2.0, 1.5, 1.2], [0.0, 0.0, 0.0], "critical"),
    ],
)
def test_a_log_with_losses_and_gradients_shows_that_the_trainer_had_another_template(
    losses: Sequence[float], norms: Sequence[float], expected: str
) -> None:
    run = masked_run(train_log=train_log(losses, norms=norms))
    assert verdict(ID, audit_rows([chat("Hi", "Hello.")], tokens=True, run=run)) == expected
