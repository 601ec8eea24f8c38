"""Gradients made many layers at once and finished in place, against the same made one by one."""

from __future__ import annotations

import pytest
import torch

import gradian.grads.hooks as hooks
from gradian.config.schema import GradsConfig
from gradian.data.collate import pad_batch
from gradian.errors import NonFiniteError
from gradian.grads.collect import GradientCollector
from gradian.grads.loss import TokenBatch
from gradian.grads.strategy import STRATEGIES, Epilogue
from gradian.model.lora import find_blocks
from tests.tiny_models import random_examples, tiny_base, tiny_lora, with_lora

SHAPES = {"r": 2, "target_modules": ["q_proj", "down_proj"]}


@pytest.mark.parametrize(("granularity", "most"), [("module", 1 << 12), ("module", 1 << 30), ("matrix", 1)])
def test_many_layers_at_once_give_the_gradients_of_one_by_one(
    granularity: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded, encoded = tiny_lora("llama", **SHAPES), random_examples([5, 4])
    collector = GradientCollector(loaded, GradsConfig(block_granularity=granularity), 0)
    expected = collector.gradients(encoded)
    monkeypatch.setenv("GRADIAN_OPS", "triton")
    monkeypatch.setattr(hooks, "_MOST_WAITING_BYTES", most)
    for found, block in zip(collector.gradients(encoded), expected, strict=True):
        assert torch.linalg.vector_norm(found - block) <= 2e-5 * torch.linalg.vector_norm(block)


@pytest.mark.parametrize("strategy", ["hooks", "loop"])
@pytest.mark.parametrize("shared", [False, True])
def test_an_epilogue_is_the_division_and_cast_of_what_was_captured(strategy: str, shared: bool) -> None:
    base = tiny_base("llama")
    if shared:
        base.model.layers[1] = base.model.layers[0]
    loaded = with_lora(base, **SHAPES)
    blocks, encoded = find_blocks(loaded.model), random_examples([5, 4])
    batch = TokenBatch.from_padded(pad_batch(encoded, 0), torch.device("cpu"))
    plain = STRATEGIES[strategy](loaded.model, blocks, batch, "mean")
    divisor = torch.tensor([3.0, 7.0])
    early = STRATEGIES[strategy](
        loaded.model, blocks, batch, "mean", Epilogue(torch.float16, divisor, squares=True)
    )
    for number, (block, stored) in enumerate(zip(plain.blocks, early.blocks, strict=True)):
        divided = block / divisor[:, None]
        assert torch.equal(stored, divided.half())
        assert torch.equal(early.figures.largest[number], divided.abs().amax(1))
        squares = divided.double().square().sum(1)
        assert bool(((early.figures.squares[number] - squares).abs() <= 1e-12 * squares).all())


# Numpy says so when the interpreter casts.
@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
def test_a_gradient_beyond_float16_is_found_before_and_after_the_cast(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loaded, encoded = tiny_lora("llama", **SHAPES), random_examples([5, 4])
    with torch.no_grad():
        # The same function, with a gradient of B that is as much larger as A is.
        pair = find_blocks(loaded.model).pairs[0]
        pair.a.weight.mul_(1e8)
        pair.b.weight.div_(1e8)
    for implementation in ("reference", "triton"):
        monkeypatch.setenv("GRADIAN_OPS", implementation)
        with pytest.raises(
            NonFiniteError, match=r"layers\.0.*q_proj: the gradient does not fit into float16"
        ):
            list(GradientCollector(loaded, GradsConfig(storage_dtype="float16"), 0).batches(encoded))
