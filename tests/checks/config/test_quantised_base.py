from __future__ import annotations

import json

import pytest

from gradian.checks.audit import Audit
from tests.checks.building import CASES, audit_run
from tests.checks.fixtures import only, verdict

ID = "config.quantised_base"
CASE = json.loads((CASES / "35-unsloth-4bit-base/adapter/adapter_config.json").read_text())


def fires() -> Audit:
    return audit_run(base_model=CASE["base_model_name_or_path"])


def silent() -> Audit:
    return audit_run(base_model="unsloth/tinyllama")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"base_model": "unsloth/Qwen3-4B-unsloth-bnb-4bit"}, "medium"),
        ({"base_model": "TheBloke/Llama-2-7B-GPTQ"}, "medium"),
        ({"load_in_4bit": True}, "info"),
        ({"base_model": None}, "skipped"),
    ],
)
def test_a_quantised_name_is_known(changes: dict[str, object], expected: str) -> None:
    assert verdict(ID, audit_run(**changes)) == expected


def test_the_fix_names_the_16_bit_repository() -> None:
    assert only(ID, fires()).fix == "Pass --base-model unsloth/tinyllama."
    assert "GPTQ" not in only(ID, audit_run(base_model="TheBloke/Llama-2-7B-GPTQ")).fix
