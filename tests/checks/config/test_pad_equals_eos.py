from __future__ import annotations

import dataclasses
import json
from functools import lru_cache

import pytest

from gradian.checks.audit import Audit
from gradian.data.chat import ChatEncoder, load_tokenizer
from gradian.data.formats import load_dataset
from tests.checks.building import CASES, audit_run, encoder, pairs
from tests.checks.fixtures import only, verdict

ID = "config.pad_equals_eos"
PLAIN_TRL = {"data_collator": None, "trainer": "trl", "assistant_only_loss": None}
CASE = CASES / "23-pad-equals-eos"


@lru_cache(maxsize=1)
def case_encoder() -> ChatEncoder:
    return ChatEncoder(load_tokenizer(str(CASE / "tokenizer")), 2**31 - 1)


def case(**changes: object) -> Audit:
    """Case 23 as a run of a plain Trainer."""
    arguments = json.loads((CASE / "run_args.json").read_text())
    run = audit_run(**{"trainer": "transformers", **arguments, **changes})
    return dataclasses.replace(run, dataset=load_dataset(CASE / "train.jsonl"), encoder=case_encoder())


def fires() -> Audit:
    return case()


def silent() -> Audit:
    return case(trainer="trl")


def test_every_row_of_the_case_loses_its_end() -> None:
    audit = case()
    finding = only(ID, audit)
    assert finding.severity == "high"
    assert finding.example_ids == tuple(example.id for example in audit.examples)
    assert "<|im_end|>" in finding.title


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"data_collator": "DataCollatorForCompletionOnlyLM"}, "high"),
        ({"data_collator": "DataCollatorForSeq2Seq"}, "passed"),
        ({"data_collator": "MyCollator"}, "low"),
        ({"data_collator": None}, "low"),
        ({"data_collator": None, "trainer": "unsloth"}, "passed"),
        ({"data_collator": None, "trainer": "axolotl"}, "passed"),
        ({"data_collator": None, "trainer": "llamafactory"}, "passed"),
        ({**PLAIN_TRL, "versions": {"trl": "0.15.2"}}, "high"),
        ({**PLAIN_TRL, "versions": {"trl": "0.16.0"}}, "passed"),
        ({**PLAIN_TRL, "versions": {}}, "skipped"),
        ({**PLAIN_TRL, "versions": {}, "packing_strategy": "bfd"}, "passed"),  # younger than the collator
        ({**PLAIN_TRL, "versions": {}, "pad_token": "<|endoftext|>"}, "passed"),
    ],
)
def test_only_a_collator_that_compares_ids_does_harm(changes: dict[str, object], expected: str) -> None:
    assert verdict(ID, case(**changes)) == expected


def test_a_pad_token_that_answers_hold_is_as_bad_as_the_end_token() -> None:
    run = audit_run(trainer="transformers", data_collator="DataCollatorForLanguageModeling")
    audit = dataclasses.replace(
        run, dataset=pairs(2), encoder=encoder(eos_token="<|endoftext|>", pad_token="<|im_end|>")
    )
    assert "a token of the answers" in only(ID, audit).title


def test_without_a_tokenizer_only_a_harmless_collator_passes() -> None:
    assert verdict(ID, audit_run(trainer="trl")) == "passed"
    assert verdict(ID, audit_run(trainer="transformers")) == "skipped"
