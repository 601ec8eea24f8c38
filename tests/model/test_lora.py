from __future__ import annotations

import pytest
from peft import LoraConfig

from gradian.errors import NoLoraBlocksError
from gradian.model.lora import coverage_findings, find_blocks, lora_pairs, trained_parameters
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


def test_two_adapters_count_the_active_one_only() -> None:
    loaded = tiny_lora("llama")
    loaded.model.add_adapter("second", LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM"))
    assert len(lora_pairs(loaded.model)) == 14
    loaded.model.set_adapter("second")
    assert [pair.a.weight.shape[0] for pair in lora_pairs(loaded.model)] == [2, 2]
    assert find_blocks(loaded.model).coverage == 1.0
