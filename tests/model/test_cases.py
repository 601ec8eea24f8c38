"""The shared cases that concern adapters, each with its expected value (`README.md` of the case)."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from gradian.config.schema import Config
from gradian.errors import AdapterError
from gradian.model.adapter import Attached, attach_adapter, read_adapter_config, read_adapter_tensors
from gradian.model.load import load_model
from gradian.model.lora import coverage_findings, find_blocks
from gradian.types import Finding
from tests.tiny_models import case_base

CASES = Path(__file__).parents[1] / "fixtures" / "cases"
FOUR = [f"model.layers.{layer}.self_attn.{m}_proj" for layer in (0, 1) for m in "qv"]


def attached(case: str, folder: str = "adapter") -> Attached:
    return attach_adapter(case_base(), str(CASES / case / folder))


def modules(found: Attached) -> list[str]:
    return [spec.name for spec in find_blocks(found.model).specs]


def only(found: Attached) -> Finding:
    (finding,) = found.findings
    return finding


def test_35_a_4bit_base_a_regular_expression_and_a_revision_that_is_none_load(tmp_path: Path) -> None:
    adapter = CASES / "35-unsloth-4bit-base" / "adapter"
    raw = read_adapter_config(adapter)
    assert raw["revision"] == "unsloth"
    assert isinstance(raw["target_modules"], str)
    case_base().save_pretrained(tmp_path)
    loaded = load_model(
        Config(
            base_model=str(tmp_path), adapter_path=str(adapter), tokenizer=str(CASES / "_tok"), device="cpu"
        )
    )
    assert [spec.name for spec in find_blocks(loaded.model).specs] == FOUR
    findings = {finding.id: finding for finding in loaded.findings}
    quantised = findings["model.quantised_base"]
    assert "unsloth/tinyllama-bnb-4bit" in quantised.title
    assert quantised.fix.endswith("which the name says is unsloth/tinyllama")
    # The expression also matches k_proj, o_proj and the feed-forward layers, which training never touched.
    assert len(findings["model.target_without_tensor"].figures["targets"]) == 10


def test_37_dora_on_one_layer_has_two_modules_and_says_what_is_not_covered() -> None:
    found = attached("37-dora-layers-to-transform")
    blocks = find_blocks(found.model)
    assert [spec.name for spec in blocks.specs] == FOUR[2:]
    assert found.findings == ()
    (finding,) = coverage_findings(blocks)
    # Two layers of A [8, 4], B [4, 8] and a magnitude [4] each.
    assert finding.figures["coverage"] == 128 / 136
    assert "128 of 136 trained parameters" in finding.evidence
    assert "Not covered: DoRA magnitude 8 (5.9%)." in finding.evidence


def test_37_a_target_that_matched_no_tensor_is_named() -> None:
    found = attached("37-dora-layers-to-transform", "adapter_typo")
    assert modules(found) == FOUR[2:3]
    finding = only(found)
    assert (finding.id, finding.figures["targets"]) == ("model.target_without_tensor", ["lm_head"])


def test_39_a_pickle_of_tensors_alone_loads() -> None:
    # One that holds more is refused without running it: see test_adapter.
    found = attached("39-adapter-bin-only")
    assert modules(found) == FOUR
    assert found.findings == ()


def test_39_of_two_weight_files_the_safetensors_is_read_and_the_report_says_which(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(CASES / "39-adapter-bin-only" / "adapter", tmp_path / "adapter"))
    tensors = torch.load(folder / "adapter_model.bin", weights_only=True)
    save_file({name: value + 1 for name, value in tensors.items()}, folder / "adapter_model.safetensors")
    found = attach_adapter(case_base(), str(folder))
    name = next(iter(tensors))
    there = found.model.state_dict()[name.replace(".weight", ".default.weight")]
    assert torch.equal(there, tensors[name] + 1)
    finding = only(found)
    assert (finding.id, finding.figures["read"]) == ("model.two_weight_files", "adapter_model.safetensors")
    assert "adapter_model.bin" in finding.evidence


def test_41_null_keys_of_a_newer_peft_are_passed_over_and_a_set_one_is_told() -> None:
    raw = read_adapter_config(CASES / "41-future-config-keys" / "adapter")
    assert (raw["quantum_config"], raw["velora_config"]) == (None, None)
    found = attached("41-future-config-keys")
    assert modules(found) == FOUR
    finding = only(found)
    assert (finding.id, finding.figures["key"]) == ("model.unknown_adapter_option", "use_bdlora")
    assert "'use_bdlora', which is not understood: its maths may differ" in finding.title


@pytest.mark.parametrize(
    ("case", "folder"),
    [
        ("35-unsloth-4bit-base", "adapter"),
        ("37-dora-layers-to-transform", "adapter_typo"),
        ("39-adapter-bin-only", "adapter"),
        ("41-future-config-keys", "adapter"),
    ],
)
def test_a_case_that_loads_still_refuses_a_lost_tensor(case: str, folder: str, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(CASES / case / folder, tmp_path / "adapter"))
    tensors = read_adapter_tensors(copy)
    lost = next(name for name in tensors if "lora_B" in name)
    del tensors[lost]
    for path in copy.glob("adapter_model.*"):
        path.unlink()
    torch.save(tensors, copy / "adapter_model.bin")
    with pytest.raises(AdapterError, match="1 adapter tensors are missing"):
        attach_adapter(case_base(), str(copy))
