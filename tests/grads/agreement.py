"""How far the capture strategies are from their oracles. `python -m tests.grads.agreement` prints the table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gradian.config.schema import GradsConfig
from gradian.grads.collect import GradientCollector
from gradian.model.load import LoadedModel, quiet_transformers
from gradian.model.lora import lora_pairs
from gradian.types import EncodedExample
from tests.tiny_models import FAMILIES, random_examples, tiny_lora

LENGTHS = [7, 12, 3, 9, 12]


def models_own_gradients(loaded: LoadedModel, encoded: list[EncodedExample]) -> list[Tensor]:
    """Per block [n, d_l]: autograd through `model(labels=)` with all logits, batch of one, no padding."""
    weights = [w for pair in lora_pairs(loaded.model) for w in (pair.a.weight, pair.b.weight)]
    rows = []
    for example in encoded:
        ids = torch.from_numpy(example.input_ids)[None]
        labels = torch.where(torch.from_numpy(example.supervised)[None], ids, -100)
        for weight in weights:
            weight.requires_grad_(True)
        loss = loaded.model(input_ids=ids, labels=labels, use_cache=False).loss
        grads = torch.autograd.grad(loss, weights)
        for weight in weights:
            weight.requires_grad_(False)
        rows.append([g.float().flatten() for g in grads])
    stacked = [torch.stack(parts) for parts in zip(*rows, strict=True)]
    return [torch.cat([a, b], dim=1) for a, b in zip(stacked[::2], stacked[1::2], strict=True)]


def collected(loaded: LoadedModel, encoded: list[EncodedExample], **settings: Any) -> list[Tensor]:
    """Per block [n, d_l], as `GradientCollector` gives them under these gradient settings."""
    return GradientCollector(loaded, GradsConfig(**settings), 0).gradients(encoded)


def largest_difference(found: list[Tensor], oracle: list[Tensor]) -> float:
    """Over examples and blocks, ||found - oracle|| / ||oracle||."""
    differences = [((f - o).norm(dim=1) / o.norm(dim=1)).max() for f, o in zip(found, oracle, strict=True)]
    assert all(bool((o.norm(dim=1) > 0).all()) for o in oracle)
    return float(torch.stack(differences).max())


def variant_settings(variant: str, family: str) -> dict[str, Any]:
    """LoraConfig settings of a variant: `plain`, `rslora`, `rank_pattern` or the last two together, `both`."""
    attention = {"gpt2": "c_attn", "gpt_neox": "query_key_value"}.get(family, "q_proj")
    down = {"gpt2": "c_fc", "gpt_neox": "dense_4h_to_h"}.get(family, "down_proj")
    patterns = {"rank_pattern": {attention: 5}, "alpha_pattern": {down: 9}}
    return {
        "plain": {},
        "rslora": {"use_rslora": True},
        "rank_pattern": patterns,
        "both": {"use_rslora": True, **patterns},
    }[variant]


@dataclass(frozen=True)
class Agreement:
    """Largest relative differences of one family in one number format.

    Attributes:
        hooks, vmap: against `loop` in the same format.
        truth: of each strategy against `loop` in float32 without padding.
    """

    hooks: float
    vmap: float
    truth: dict[str, float]


def agreement(family: str, dtype: torch.dtype, variant: str, lora_dtype: torch.dtype) -> Agreement:
    """Measure one family: hooks and vmap in batches of three, the loop one by one."""
    loaded = tiny_lora(family, dtype, lora_dtype, **variant_settings(variant, family))
    encoded = random_examples(LENGTHS)
    found = {
        strategy: collected(loaded, encoded, strategy=strategy, batch_size=3)
        for strategy in ("loop", "hooks", "vmap")
    }
    loaded.model.float()
    exact = collected(loaded, encoded, strategy="loop", batch_size=1)
    return Agreement(
        hooks=largest_difference(found["hooks"], found["loop"]),
        vmap=largest_difference(found["vmap"], found["loop"]),
        truth={strategy: largest_difference(grads, exact) for strategy, grads in found.items()},
    )


def _table() -> Iterator[str]:
    yield "LoRA on every linear, rsLoRA and rank_pattern; largest relative difference over examples and blocks"
    yield f"{'family':10}{'format':10}{'hooks - loop':>14}{'vmap - loop':>14}{'loop - float32':>16}"
    for family in FAMILIES:
        for dtype in (torch.float32, torch.bfloat16):
            found = agreement(family, dtype, "both", dtype)
            name = str(dtype).removeprefix("torch.")
            yield f"{family:10}{name:10}{found.hooks:14.1e}{found.vmap:14.1e}{found.truth['loop']:16.1e}"


if __name__ == "__main__":
    with quiet_transformers():
        for line in _table():
            print(line)
