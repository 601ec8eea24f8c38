from __future__ import annotations

import json

import pytest

from gradian.checks.audit import Audit
from tests.checks.building import CASES, audit_run
from tests.checks.fixtures import only, verdict

ID = "config.attention_only_targets"
UNSLOTH = json.loads((CASES / "35-unsloth-4bit-base/adapter/adapter_config.json").read_text())[
    "target_modules"
]


def fires() -> Audit:
    return audit_run(lora={"target_modules": ("q_proj", "v_proj")})


def silent() -> Audit:
    return audit_run(lora={"target_modules": ("q_proj", "v_proj", "down_proj")})


@pytest.mark.parametrize(
    ("targets", "expected"),
    [
        (("q_proj", "k_proj", "v_proj", "o_proj"), "medium"),
        (("query_key_value",), "medium"),  # GPT-NeoX
        (("c_attn",), "medium"),  # GPT-2
        (("qkv_proj",), "medium"),  # Phi-3
        (("model.layers.0.self_attn.q_proj", "attn.c_proj"), "medium"),
        (("c_attn", "c_proj"), "passed"),  # GPT-2's c_proj is in both
        (("gate_proj",), "passed"),
        ("all-linear", "passed"),
        (UNSLOTH, "passed"),
        (r"model\.layers\.\d+\.self_attn\.(q_proj|v_proj)", "medium"),
        (r".*\.(q_proj|v_proj|up_proj)$", "passed"),
        (r".*lora_me.*", "skipped"),
        (r"(.*)", "skipped"),
        ((), "skipped"),
        (None, "skipped"),
    ],
)
def test_targets_are_known_by_name(targets: object, expected: str) -> None:
    assert verdict(ID, audit_run(lora={"target_modules": targets})) == expected


def test_a_hostile_pattern_is_never_run() -> None:
    assert verdict(ID, audit_run(lora={"target_modules": "(q_proj+)+" * 400 + "$"})) == "medium"


def test_expert_weights_count_as_mlp() -> None:
    lora = {"target_modules": ("q_proj",), "raw": {"target_parameters": ["mlp.experts.gate_up_proj"]}}
    assert verdict(ID, audit_run(lora=lora)) == "passed"


def test_the_title_names_the_targets() -> None:
    assert "'q_proj', 'v_proj'" in only(ID, fires()).title
