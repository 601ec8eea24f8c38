from __future__ import annotations

from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import MixtralConfig, MixtralForCausalLM

from gradian.errors import NoLoraBlocksError
from gradian.model.lora import coverage_findings, find_blocks, lora_pairs, trained_parameters
from gradian.types import Severity
from tests.tiny_models import FAMILIES, tiny_base, tiny_lora

# Linear layers of one transformer block, by family.
LINEARS = {"gpt_neox": 4, "gpt2": 4}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_adapted_linear_is_a_block_with_its_name_in_the_base_model(family: str) -> None:
    loaded = tiny_lora(family)
    blocks = find_blocks(loaded.model)
    assert len(blocks.specs) == 2 * LINEARS.get(family, 7)
    base_names = {name for name, _ in tiny_base(family).named_modules()}
    assert {spec.name for spec in blocks.specs} <= base_names
    assert blocks.coverage == 1.0
    assert coverage_findings(blocks) == ()
    assert sum(s.size for s in blocks.specs) == sum(
        p.numel() for p in trained_parameters(loaded.model).values()
    )


def test_offsets_and_shapes_follow_the_order_of_the_model() -> None:
    specs = find_blocks(tiny_lora("llama", r=3, rank_pattern={"v_proj": 2}).model).specs
    assert specs[0].shape == ((3, 24), (24, 3))
    assert specs[2].name == "model.layers.0.self_attn.v_proj"
    assert specs[2].shape == ((2, 24), (12, 2))
    assert [s.offset for s in specs[1:]] == [s.offset + s.size for s in specs[:-1]]


def test_matrix_granularity_splits_each_block() -> None:
    model = tiny_lora("llama").model
    specs = find_blocks(model, granularity="matrix").specs
    assert [s.name for s in specs[:2]] == [
        "model.layers.0.self_attn.q_proj.lora_A",
        "model.layers.0.self_attn.q_proj.lora_B",
    ]
    assert sum(s.size for s in specs) == sum(s.size for s in find_blocks(model).specs)


def test_the_filter_is_searched_in_the_name_and_may_pin_a_layer() -> None:
    model = tiny_lora("llama").model
    blocks = find_blocks(model, "down_proj")
    assert [s.name for s in blocks.specs] == [f"model.layers.{i}.mlp.down_proj" for i in (0, 1)]
    assert blocks.n_filtered == 12
    assert blocks.coverage == 1.0
    assert [s.name for s in find_blocks(model, r"layers\.1\..*down").specs] == [
        "model.layers.1.mlp.down_proj"
    ]


def test_a_filter_that_matches_nothing_shows_names_that_exist() -> None:
    with pytest.raises(NoLoraBlocksError, match=r"no LoRA blocks found(.|\n)*q_proj"):
        find_blocks(tiny_lora("llama").model, "nonsense")


def test_a_model_without_an_adapter_has_no_blocks() -> None:
    with pytest.raises(NoLoraBlocksError, match="--adapter"):
        find_blocks(tiny_base("llama"))


@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`")
def test_an_adapter_on_embeddings_alone_has_no_blocks() -> None:
    with pytest.raises(NoLoraBlocksError, match="embeddings"):
        find_blocks(tiny_lora("llama", target_modules=["embed_tokens"]).model)


def trainable_at_training_time(family: str, **lora: Any) -> int:
    """What PEFT itself would train, counted before anything is frozen."""
    model = get_peft_model(tiny_base(family), LoraConfig(task_type="CAUSAL_LM", **lora))
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


# (family, LoraConfig settings, what is not covered)
PARTIAL: dict[str, tuple[str, dict[str, Any], set[str]]] = {
    "dora": ("llama", {"use_dora": True, "target_modules": "all-linear"}, {"DoRA magnitude"}),
    "modules_to_save": (
        "llama",
        {"modules_to_save": ["lm_head"], "target_modules": ["q_proj"]},
        {"modules_to_save"},
    ),
    "embeddings": ("llama", {"target_modules": ["q_proj", "embed_tokens"]}, {"LoRA on embeddings"}),
    "bias lora_only": ("gpt_neox", {"bias": "lora_only", "target_modules": ["query_key_value"]}, {"bias"}),
    "bias all": ("gpt_neox", {"bias": "all", "target_modules": ["query_key_value"]}, {"bias"}),
    "lora_bias": ("llama", {"lora_bias": True, "target_modules": ["q_proj"]}, {"bias"}),
    "trainable tokens": (
        "llama",
        {"trainable_token_indices": [3, 4], "target_modules": ["q_proj"]},
        {"trainable tokens"},
    ),
    "lm_head": ("llama", {"target_modules": ["q_proj", "lm_head"]}, set()),
    "layers_to_transform": ("llama", {"target_modules": ["q_proj"], "layers_to_transform": [1]}, set()),
    "regex": ("llama", {"target_modules": r".*layers\.0\..*(q|v)_proj"}, set()),
}


@pytest.mark.filterwarnings("ignore:`lora_bias=True` was passed")
@pytest.mark.parametrize("name", PARTIAL)
def test_coverage_counts_exactly_what_peft_trains(name: str, record_property: Any) -> None:
    family, lora, missed = PARTIAL[name]
    lora = {"r": 3, **lora}
    blocks = find_blocks(tiny_lora(family, **lora).model)
    assert sum(blocks.trainable.values()) == trainable_at_training_time(family, **lora)
    assert set(blocks.trainable) - {"lora"} == missed
    assert blocks.trainable["lora"] == sum(spec.size for spec in blocks.specs)
    record_property(f"coverage {name}", blocks.coverage)
    findings = coverage_findings(blocks)
    assert [f.id for f in findings] == ["attribution.partial_coverage"] * bool(missed)
    for finding in findings:
        expected = Severity.HIGH if blocks.coverage < 0.5 else Severity.MEDIUM
        assert finding.severity == expected
        assert all(kind in finding.evidence for kind in missed)


def test_a_whole_head_beside_a_small_lora_is_high() -> None:
    (finding,) = coverage_findings(
        find_blocks(tiny_lora("llama", modules_to_save=["lm_head"], target_modules=["q_proj"]).model)
    )
    assert finding.severity == Severity.HIGH
    assert 0 < finding.figures["coverage"] < 0.5


def mixtral() -> Any:
    config = MixtralConfig(
        vocab_size=67,
        hidden_size=24,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=4,
        num_experts_per_tok=2,
        max_position_embeddings=64,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return MixtralForCausalLM(config)


def test_fused_experts_are_reported_not_attributed(record_property: Any) -> None:
    base = mixtral()
    fused = [name for name, p in base.named_parameters() if p.dim() == 3]
    if not fused:
        pytest.skip("this transformers keeps Mixtral's experts as linear layers")
    config = LoraConfig(
        r=2,
        target_modules=["q_proj"],
        target_parameters=[".".join(name.split(".")[-3:]) for name in fused],
        task_type="CAUSAL_LM",
    )
    model = get_peft_model(base, config)
    trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
    blocks = find_blocks(model)
    assert [spec.name for spec in blocks.specs] == ["model.layers.0.self_attn.q_proj"]
    assert sum(blocks.trainable.values()) == trainable
    record_property("coverage fused experts", blocks.coverage)
    assert [f.id for f in coverage_findings(blocks)] == ["attribution.partial_coverage"]


def test_two_adapters_count_the_active_one_only() -> None:
    loaded = tiny_lora("llama")
    loaded.model.add_adapter("second", LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM"))
    assert len(lora_pairs(loaded.model)) == 14
    loaded.model.set_adapter("second")
    assert [pair.a.weight.shape[0] for pair in lora_pairs(loaded.model)] == [2, 2]
    assert find_blocks(loaded.model).coverage == 1.0
