"""The three capture strategies against autograd on the model's own loss, one example at a time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from gradian.config.schema import GradsConfig
from gradian.data.collate import pad_batch
from gradian.errors import GradientError
from gradian.grads.collect import GradientCollector
from gradian.grads.loss import TokenBatch
from gradian.grads.strategy import STRATEGIES
from gradian.model.lora import find_blocks, lora_pairs
from gradian.types import EncodedExample
from tests.grads.agreement import (
    LENGTHS,
    agreement,
    collected,
    largest_difference,
    models_own_gradients,
    variant_settings,
)
from tests.tiny_models import FAMILIES, random_examples, tiny_base, tiny_lora, with_lora
from tests.tolerances import STRATEGIES as TOLERANCE


@pytest.mark.parametrize("strategy", ["hooks", "loop", "vmap"])
@pytest.mark.parametrize("variant", ["plain", "rslora", "rank_pattern", "both"])
@pytest.mark.parametrize("family", FAMILIES)
def test_float32_gradients_are_those_of_the_models_own_loss(
    family: str, variant: str, strategy: str, record_property: Callable[[str, object], None]
) -> None:
    loaded = tiny_lora(family, **variant_settings(variant, family))
    encoded = random_examples(LENGTHS)
    difference = largest_difference(
        collected(loaded, encoded, strategy=strategy, batch_size=3), models_own_gradients(loaded, encoded)
    )
    record_property(f"{family} {variant} {strategy} float32", difference)
    assert difference <= TOLERANCE[torch.float32]


@pytest.mark.parametrize("lora_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", FAMILIES)
def test_bfloat16_gradients_are_as_close_to_float32_as_the_loops_are(
    family: str, lora_dtype: torch.dtype, record_property: Callable[[str, object], None]
) -> None:
    found = agreement(family, torch.bfloat16, "both", lora_dtype)
    record_property(f"{family} LoRA {lora_dtype} hooks against loop", found.hooks)
    record_property(f"{family} LoRA {lora_dtype} vmap against loop", found.vmap)
    record_property(f"{family} LoRA {lora_dtype} loop against float32", found.truth["loop"])
    assert found.hooks <= TOLERANCE[torch.bfloat16]
    # vmap batches its matmuls in another way, so it rounds elsewhere: just as far from the truth.
    noise = found.truth["loop"]
    assert noise < 0.3
    assert found.truth["hooks"] <= 1.2 * noise
    assert found.truth["vmap"] <= 2.0 * noise


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2"])
def test_a_finite_difference_of_one_weight_is_its_gradient(family: str) -> None:
    loaded = tiny_lora(family, torch.float64, torch.float64)
    encoded = random_examples([9])
    pair = lora_pairs(loaded.model)[2]
    grads = collected(loaded, encoded)[2][0]
    batch = TokenBatch.from_padded(pad_batch(encoded, 0), torch.device("cpu"))
    blocks = find_blocks(loaded.model)
    for weight, offset in ((pair.a.weight, 0), (pair.b.weight, pair.a.weight.numel())):
        # Llama's and Gemma's norms compute in float32 whatever the model's dtype, so the step is not tiny.
        losses, step = [], 1e-4 if family == "gpt2" else 1e-2
        for shift in (step, -2 * step):
            weight.data[1, 2] += shift
            losses.append(float(STRATEGIES["loop"](loaded.model, blocks, batch, "mean").losses[0]))
        weight.data[1, 2] += step
        slope = (losses[0] - losses[1]) / (2 * step)
        assert float(grads[offset + weight.shape[1] + 2]) == pytest.approx(
            slope, rel=1e-6 if family == "gpt2" else 5e-3
        )


@pytest.mark.parametrize("strategy", ["hooks", "vmap"])
@pytest.mark.parametrize("batch_size", [1, 3, 8])
def test_the_batch_size_changes_no_gradient(
    batch_size: int, strategy: str, record_property: Callable[[str, object], None]
) -> None:
    loaded = tiny_lora("llama")
    encoded = random_examples([*LENGTHS, 5, 8, 1 + max(LENGTHS)])
    oracle = collected(loaded, encoded, strategy="loop", batch_size=1)
    difference = largest_difference(
        collected(loaded, encoded, strategy=strategy, batch_size=batch_size), oracle
    )
    record_property(f"{strategy} batch size {batch_size}", difference)
    assert difference <= TOLERANCE[torch.float32]


@pytest.mark.parametrize("strategy", ["hooks", "vmap"])
def test_in_float64_batching_changes_nothing_but_the_last_bits(strategy: str) -> None:
    # GPT-2 computes in float64 throughout; `gradients` then rounds to float32 once.
    loaded = tiny_lora("gpt2", torch.float64, torch.float64)
    encoded = random_examples(LENGTHS)
    oracle = collected(loaded, encoded, strategy="loop", batch_size=1)
    assert largest_difference(collected(loaded, encoded, strategy=strategy, batch_size=8), oracle) <= 1e-7


def test_the_order_of_the_examples_changes_no_gradient(
    record_property: Callable[[str, object], None],
) -> None:
    loaded = tiny_lora("qwen2")
    encoded = random_examples(LENGTHS)
    order = [3, 0, 4, 2, 1]
    ordered = collected(loaded, encoded, batch_size=2)
    shuffled = collected(loaded, [encoded[i] for i in order], batch_size=2)
    difference = largest_difference(shuffled, [block[order] for block in ordered])
    record_property("shuffled against ordered", difference)
    assert difference <= TOLERANCE[torch.float32]


@pytest.mark.parametrize("strategy", ["hooks", "loop"])
@pytest.mark.parametrize("family", FAMILIES)
def test_padding_on_the_left_changes_no_gradient(
    family: str, strategy: str, record_property: Callable[[str, object], None]
) -> None:
    loaded = tiny_lora(family)
    encoded = random_examples(LENGTHS)
    blocks = find_blocks(loaded.model)
    left, right = (
        STRATEGIES[strategy](
            loaded.model,
            blocks,
            TokenBatch.from_padded(pad_batch(encoded, 0, side), torch.device("cpu")),
            "mean",
        )
        for side in ("left", "right")
    )
    difference = largest_difference(left.blocks, right.blocks)
    record_property(f"{family} {strategy} left against right padding", difference)
    assert difference <= TOLERANCE[torch.float32]


def test_more_padding_changes_no_gradient() -> None:
    loaded = tiny_lora("mistral")
    encoded = random_examples([4, 5])
    long = random_examples([30])
    together = collected(loaded, [*encoded, *long], batch_size=3)
    alone = collected(loaded, encoded, batch_size=3)
    assert largest_difference([block[:2] for block in together], alone) <= TOLERANCE[torch.float32]


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing_enable")
@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_checkpointing_that_was_on_for_training_changes_no_bit(family: str, reentrant: bool) -> None:
    encoded = random_examples(LENGTHS)
    plain = collected(tiny_lora(family), encoded)
    loaded = tiny_lora(family)
    base = loaded.model.get_base_model()
    base.gradient_checkpointing_enable({"use_reentrant": reentrant})
    base.train()
    assert any(getattr(module, "gradient_checkpointing", False) for module in base.modules())
    checkpointed = collected(loaded, encoded)
    assert all(torch.equal(a, b) for a, b in zip(checkpointed, plain, strict=True))


class Checkpointed(nn.Module):
    """A layer that checkpoints itself whatever the model's mode and flags, as some models' own code does."""

    def __init__(self, inner: nn.Module, reentrant: bool) -> None:
        super().__init__()
        self.inner, self.reentrant = inner, reentrant

    def forward(self, hidden: Tensor) -> Tensor:
        out: Tensor = checkpoint(self.inner, hidden, use_reentrant=self.reentrant)
        return out


@pytest.mark.parametrize("strategy", ["hooks", "loop"])
def test_a_layer_that_always_checkpoints_itself_is_exact(strategy: str) -> None:
    encoded = random_examples(LENGTHS)
    base = tiny_base("llama")
    base.model.layers[0].mlp = Checkpointed(base.model.layers[0].mlp, reentrant=False)
    loaded = with_lora(base, r=2, target_modules="all-linear")
    found = collected(loaded, encoded, strategy=strategy, batch_size=3)
    assert largest_difference(found, models_own_gradients(loaded, encoded)) <= TOLERANCE[torch.float32]


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad=True")
def test_a_layer_that_always_checkpoints_itself_reentrantly_is_refused_not_zero() -> None:
    base = tiny_base("llama")
    base.model.layers[0].mlp = Checkpointed(base.model.layers[0].mlp, reentrant=True)
    loaded = with_lora(base, r=2, target_modules=r".*mlp.*_proj")
    with pytest.raises(GradientError, match="did not run as a module"):
        collected(loaded, random_examples(LENGTHS))


def test_a_sum_is_the_mean_times_the_number_of_targets() -> None:
    loaded = tiny_lora("llama")
    encoded = random_examples(LENGTHS)
    counts = torch.tensor([[e.n_supervised] for e in encoded])
    mean = collected(loaded, encoded)
    summed = collected(loaded, encoded, loss_reduction="sum")
    assert largest_difference(summed, [block * counts for block in mean]) <= TOLERANCE[torch.float32]


def test_matrix_blocks_are_module_blocks_cut_in_two() -> None:
    loaded = tiny_lora("llama")
    encoded = random_examples(LENGTHS)
    modules = collected(loaded, encoded)
    matrices = collected(loaded, encoded, block_granularity="matrix")
    assert all(
        torch.equal(torch.cat(matrices[2 * i : 2 * i + 2], dim=1), block) for i, block in enumerate(modules)
    )


def test_a_filtered_module_has_the_gradient_it_has_among_all() -> None:
    loaded = tiny_lora("llama")
    encoded = random_examples(LENGTHS)
    everything = GradientCollector(loaded, GradsConfig(), 0)
    some = GradientCollector(loaded, GradsConfig(module_filter=r"layers\.1\..*down_proj"), 0)
    assert [spec.name for spec in some.specs] == ["model.layers.1.mlp.down_proj"]
    at = [spec.name for spec in everything.specs].index("model.layers.1.mlp.down_proj")
    assert torch.equal(some.gradients(encoded)[0], everything.gradients(encoded)[at])


@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`")
@pytest.mark.filterwarnings("ignore:fan_in_fan_out is set to True")
@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma2", "gpt2"])
def test_lora_on_the_head_and_tied_embeddings_is_exact(family: str) -> None:
    targets = ["c_attn", "lm_head"] if family == "gpt2" else ["q_proj", "down_proj", "lm_head"]
    loaded = tiny_lora(family, target_modules=targets)
    encoded = random_examples(LENGTHS)
    oracle = models_own_gradients(loaded, encoded)
    assert find_blocks(loaded.model).specs[-1].name == "lm_head"
    for strategy in ("hooks", "loop", "vmap"):
        found = collected(loaded, encoded, strategy=strategy, batch_size=3)
        assert largest_difference(found, oracle) <= TOLERANCE[torch.float32], strategy


def test_capture_leaves_no_hook_and_no_gradient_behind() -> None:
    loaded = tiny_lora("llama")
    collected(loaded, random_examples(LENGTHS))
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in loaded.model.modules())
    assert not any(p.requires_grad or p.grad is not None for p in loaded.model.parameters())


def test_a_switched_off_adapter_is_refused_not_read_as_zero() -> None:
    loaded = tiny_lora("llama")
    with loaded.adapter_disabled(), pytest.raises(GradientError, match="did not run as a module"):
        collected(loaded, random_examples(LENGTHS))


def test_left_padding_is_refused_by_vmap() -> None:
    loaded = tiny_lora("llama")
    batch = TokenBatch.from_padded(pad_batch(random_examples([3, 5]), 0, "left"), torch.device("cpu"))
    with pytest.raises(GradientError, match="right only"):
        STRATEGIES["vmap"](loaded.model, find_blocks(loaded.model), batch, "mean")


def test_the_oracle_can_tell_a_wrong_gradient() -> None:
    loaded = tiny_lora("llama")
    encoded = random_examples(LENGTHS)
    wrong = [EncodedExample(e.id, e.position, e.input_ids, np.roll(e.supervised, 1)) for e in encoded]
    for row in wrong:
        row.supervised[0] = False
    assert largest_difference(collected(loaded, wrong), models_own_gradients(loaded, encoded)) > 0.1


def test_a_layer_that_runs_twice_has_the_sum_of_both_gradients() -> None:
    base = tiny_base("llama")
    base.model.layers[1] = base.model.layers[0]
    loaded = with_lora(base, r=2, target_modules="all-linear")
    encoded = random_examples(LENGTHS)
    oracle = models_own_gradients(loaded, encoded)
    assert len(oracle) == 7
    assert largest_difference(collected(loaded, encoded, batch_size=3), oracle) <= TOLERANCE[torch.float32]


class Flattened(nn.Module):
    """Runs a layer on [b * t, h], as some models do."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, hidden: Tensor) -> Tensor:
        return self.inner(hidden.reshape(-1, hidden.shape[-1])).reshape(hidden.shape)


class Routed(nn.Module):
    """Sends a share of the tokens to the first expert and the rest to the second, out of order."""

    def __init__(self, experts: list[nn.Module], share: float) -> None:
        super().__init__()
        self.share = share
        self.experts = nn.ModuleList(experts)

    def forward(self, hidden: Tensor) -> Tensor:
        flat = hidden.reshape(-1, hidden.shape[-1])
        order = flat[:, 0].argsort()
        half = round(len(order) * self.share)
        out = torch.zeros_like(flat)
        out[order[:half]] = self.experts[0](flat[order[:half]])
        if half < len(order):
            out[order[half:]] = self.experts[1](flat[order[half:]])
        return out.reshape(hidden.shape)


def test_a_layer_that_sees_the_batch_flattened_is_exact() -> None:
    base = tiny_base("llama")
    base.model.layers[1].mlp = Flattened(base.model.layers[1].mlp)
    loaded = with_lora(base, r=2, target_modules="all-linear")
    encoded = random_examples(LENGTHS)
    found = collected(loaded, encoded, batch_size=3)
    assert largest_difference(found, models_own_gradients(loaded, encoded)) <= TOLERANCE[torch.float32]


# With a share of 1 the first expert sees as many tokens as the batch has, in another order.
@pytest.mark.parametrize("share", [0.5, 1.0])
def test_routed_experts_are_refused_by_hooks_and_exact_by_the_loop(share: float) -> None:
    base = tiny_base("llama")
    other = tiny_base("llama", seed=5)
    experts = [base.model.layers[0].mlp, other.model.layers[0].mlp, other.model.layers[1].mlp]
    base.model.layers[0].mlp = Routed(experts, share)
    loaded = with_lora(base, r=2, target_modules=r".*experts\.\d\.(up|down)_proj")
    encoded = random_examples([7, 6])
    with pytest.raises(GradientError, match=r"experts(.|\n)*grads\.strategy to loop"):
        collected(loaded, encoded)
    blocks = collected(loaded, encoded, strategy="loop")
    assert [bool(block.any()) for block in blocks] == [True] * 2 + [share < 1] * 2 + [False] * 2
