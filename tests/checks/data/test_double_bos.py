from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tokenizers.processors import TemplateProcessing

from gradian.checks.audit import Audit
from gradian.data.chat import ChatEncoder
from tests.checks.building import dataset, healthy_run
from tests.checks.data.rows import Row, audit_rows, chat
from tests.checks.fixtures import only, verdict
from tests.conftest import make_tokenizer

if TYPE_CHECKING:
    from gradian.runs.artifact import RunArtifact

ID = "data.double_bos"
RENDERED: Row = {"text": "<|im_start|>user\nHi<|im_end|>\n"}


def adding(rows: list[Row], run: RunArtifact | None = None) -> Audit:
    tokenizer = make_tokenizer()
    bos = tokenizer.bos_token
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{bos} $A", special_tokens=[(bos, tokenizer.bos_token_id)]
    )
    return Audit(dataset=dataset(rows), encoder=ChatEncoder(tokenizer, 1000), run=run)


def fires() -> Audit:
    return adding([RENDERED, {"text": "plain"}])


def silent() -> Audit:
    return audit_rows([RENDERED, chat("Hi", "Hello.")], tokens=True)


def test_raw_text_that_begins_with_the_token_is_named() -> None:
    finding = only(ID, fires())
    assert (finding.severity.value, finding.figures["rows"]) == ("medium", [1])


@pytest.mark.parametrize(("trainer", "expected"), [("unsloth", "low"), ("trl", "passed"), (None, "low")])
def test_rendered_turns_count_where_the_trainer_tokenises_rendered_text(
    trainer: str | None, expected: str
) -> None:
    run = healthy_run(trainer=trainer) if trainer else None
    assert verdict(ID, adding([chat("Hi", "Hello.")], run)) == expected
