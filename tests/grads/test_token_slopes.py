"""Slopes of token losses along a direction, against a backward pass for each token."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from gradian.config.schema import GradsConfig
from gradian.errors import GradientError
from gradian.grads.collect import GradientCollector
from gradian.model.lora import lora_pairs
from gradian.types import EncodedExample, FloatArray
from tests.tiny_models import FAMILIES, random_examples, tiny_lora

# Of the largest slope: two differentiations of the same float32 (float64) forward pass.
CLOSE = {torch.float32: 2e-4, torch.float64: 1e-11}


def direction_of(collector: GradientCollector) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    return [torch.randn(spec.size, generator=generator) for spec in collector.specs]


def masked_backward(
    collector: GradientCollector, encoded: EncodedExample, direction: list[torch.Tensor]
) -> FloatArray:
    """<v, grad loss_t> from a backward pass of each token's loss alone."""
    single = []
    for position in np.flatnonzero(encoded.supervised):
        mask = np.zeros_like(encoded.supervised)
        mask[position] = True
        single.append(replace(encoded, supervised=mask))
    return collector.dots(single, [part[None] for part in direction])[:, 0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("family", FAMILIES)
def test_slopes_are_those_of_a_backward_pass_for_each_token(family: str, dtype: torch.dtype) -> None:
    collector = GradientCollector(tiny_lora(family, dtype, dtype), GradsConfig(), 0)
    (encoded,) = random_examples([11])
    direction = direction_of(collector)
    expected = masked_backward(collector, encoded, direction)
    found = collector.slopes(encoded, direction)
    # The gradients of `dots` pass through float32.
    limit = max(CLOSE[dtype], 2e-6)
    assert np.abs(found - expected).max() <= limit * np.abs(expected).max()


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize(
    "settings",
    [
        {"block_granularity": "matrix"},
        {"module_filter": "down_proj"},
        {"projection_dim": 16, "projection_kind": "countsketch"},
        {"projection_dim": 16, "projection_kind": "rademacher"},
    ],
)
def test_blocks_filters_and_projections_are_followed(settings: dict[str, object], attention: str) -> None:
    loaded = tiny_lora("llama")
    loaded.model.config._attn_implementation = attention
    collector = GradientCollector(loaded, GradsConfig(**settings), 0)
    (encoded,) = random_examples([9])
    direction = direction_of(collector)
    expected = masked_backward(collector, encoded, direction)
    assert np.abs(collector.slopes(encoded, direction) - expected).max() <= 2e-4 * np.abs(expected).max()


def test_slopes_are_the_change_of_the_losses_along_the_direction() -> None:
    # Independent of every gradient: a central difference in float64, through the one family whose norms do not
    # round to float32.
    loaded = tiny_lora("gpt2", torch.float64, torch.float64)
    collector = GradientCollector(loaded, GradsConfig(), 0)
    (encoded,) = random_examples([10])
    direction = direction_of(collector)
    ids = torch.from_numpy(encoded.input_ids)[None]
    at = np.flatnonzero(encoded.supervised)

    def losses(step: float) -> torch.Tensor:
        with torch.no_grad():
            for pair, part in zip(lora_pairs(loaded.model), direction, strict=True):
                a, b = part.double().split([pair.a.weight.numel(), pair.b.weight.numel()])
                pair.a.weight += step * a.view_as(pair.a.weight)
                pair.b.weight += step * b.view_as(pair.b.weight)
            logits = loaded.model(input_ids=ids).logits[0, at - 1]
        return nn.functional.cross_entropy(logits, ids[0, at], reduction="none")

    step = 1e-6
    up = losses(step)
    down = losses(-2 * step)
    losses(step)
    difference = ((up - down) / (2 * step)).numpy()
    found = collector.slopes(encoded, direction)
    assert np.abs(found - difference).max() <= 1e-6 * np.abs(difference).max()


def test_the_model_is_left_as_it_was() -> None:
    loaded = tiny_lora("llama")
    collector = GradientCollector(loaded, GradsConfig(), 0)
    before = {name: value.clone() for name, value in loaded.model.state_dict().items()}
    collector.slopes(random_examples([6])[0], direction_of(collector))
    after = loaded.model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert not any(hook for module in loaded.model.modules() for hook in module._forward_pre_hooks)


class _NoForwardMode(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
        return x * 1.0

    @staticmethod
    def backward(ctx: object, grad: torch.Tensor) -> torch.Tensor:
        return grad


def test_a_model_without_forward_mode_is_told_so() -> None:
    loaded = tiny_lora("llama")
    layer = loaded.model.get_base_model().model.layers[1].mlp
    forward = layer.forward
    layer.forward = lambda x: _NoForwardMode.apply(forward(x))
    collector = GradientCollector(loaded, GradsConfig(), 0)
    with pytest.raises(GradientError, match="no forward-mode derivative") as caught:
        collector.slopes(random_examples([6])[0], direction_of(collector))
    assert "--no-tokens" in str(caught.value)
