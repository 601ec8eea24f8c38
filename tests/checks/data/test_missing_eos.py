from __future__ import annotations

import dataclasses

import pytest

from gradian.checks.audit import Audit
from tests.checks.building import dataset, encoder, healthy_run
from tests.checks.data.rows import audit_rows, chat, healthy
from tests.checks.fixtures import only, verdict

ID = "data.missing_eos"
ENDLESS = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def fires() -> Audit:
    return Audit(dataset=dataset([chat("Hi", "Hello.")]), encoder=encoder(chat_template=ENDLESS))


def silent() -> Audit:
    rows = [chat("Hi", "Hello.", "And?", "Yes."), {"text": "<|im_start|>user\nHi<|im_end|>\n"}]
    return audit_rows([*healthy(5), *rows], tokens=True)


def test_a_template_that_ends_no_turn_is_high() -> None:
    finding = only(ID, fires())
    assert (finding.severity.value, finding.figures["rows"]) == ("high", [1])
    assert "'<|im_end|>'" in finding.fix


def test_a_line_break_within_the_mask_may_follow_the_end_token() -> None:
    turn = "<|im_start|>{{ m.role }}\n{% generation %}{{ m.content }}END\n{% endgeneration %}"
    for end, expected in (("<|im_end|>", "passed"), ("", "high")):
        template = f"{{% for m in messages %}}{turn.replace('END', end)}{{% endfor %}}"
        rows = dataset([chat("Hi", "Hello.")])
        assert verdict(ID, Audit(dataset=rows, encoder=encoder(chat_template=template))) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("### Instruction:\nq\n\n### Response:\nno", "high"),
        ("### Instruction:\nq\n\n### Response:\nno<|im_end|>", "passed"),
        ("A document.", "low"),
    ],
)
def test_raw_text_is_judged_by_its_end(text: str, expected: str) -> None:
    assert verdict(ID, audit_rows([{"text": text}], tokens=True)) == expected


def test_trl_closes_raw_text_itself_and_a_row_that_was_cut_is_no_case_of_this() -> None:
    rows = [{"text": "### Response:\nno"}]
    assert verdict(ID, audit_rows(rows, tokens=True, run=healthy_run(trainer="trl"))) == "passed"
    assert verdict(ID, audit_rows(rows, tokens=True, run=healthy_run(trainer="unsloth"))) == "high"
    cut = dataclasses.replace(fires(), encoder=encoder(24, chat_template=ENDLESS))
    assert verdict(ID, cut) == "passed"
