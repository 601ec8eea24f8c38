"""Finding what of an adapter can be attributed: its LoRA pairs on linear layers.

Modules are recognised by type, never by name. What else the adapter trained (DoRA magnitudes, embeddings,
convolutions, fused experts, biases, fully trained modules) is counted, so that a report can say which share
of the trained parameters its gradients cover.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

from gradian.errors import NoLoraBlocksError
from gradian.types import BlockSpec, Finding, Severity

_PEFT_PREFIX = "base_model.model."


@dataclass(frozen=True, eq=False)
class LoraPair:
    """The two linear maps of one adapted layer.

    Attributes:
        name: the adapted layer's name in the base model (`model.layers.12.mlp.down_proj`).
        a: the map from inputs to rank, weight [r, in].
        b: the map from rank to outputs, weight [out, r].
    """

    name: str
    a: nn.Linear
    b: nn.Linear

    @property
    def shapes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Shapes of A and B."""
        return tuple(self.a.weight.shape), tuple(self.b.weight.shape)


@dataclass(frozen=True, eq=False)
class LoraBlocks:
    """The blocks of the gradient vector.

    Attributes:
        specs: the blocks in order.
        pairs: the adapted layers in order; one block each, or two (A, B) with `matrix` granularity.
        granularity: `module` or `matrix`.
        trainable: elements by kind over everything the adapter trained; `lora` is what gradients can cover.
        n_filtered: adapted layers that the module filter left out.
    """

    specs: tuple[BlockSpec, ...]
    pairs: tuple[LoraPair, ...]
    granularity: Literal["module", "matrix"]
    trainable: Mapping[str, int]
    n_filtered: int

    @property
    def coverage(self) -> float:
        """Share of the trained parameters that LoRA gradients can cover, whatever the module filter says."""
        return self.trainable["lora"] / sum(self.trainable.values())


def lora_pairs(model: nn.Module) -> tuple[LoraPair, ...]:
    """Return every LoRA pair of the active adapter that sits on a linear layer, in module order."""
    from peft.tuners.lora import LoraLayer
    from peft.tuners.lora.layer import ParamWrapper
    from transformers.pytorch_utils import Conv1D

    pairs = []
    for name, module in model.named_modules():
        if not isinstance(module, LoraLayer) or isinstance(module, ParamWrapper):
            continue
        if not isinstance(module.get_base_layer(), (nn.Linear, Conv1D)):
            continue
        for adapter in module.active_adapters:
            a, b = (
                (module.lora_A[adapter], module.lora_B[adapter]) if adapter in module.lora_A else (None, None)
            )
            if isinstance(a, nn.Linear) and isinstance(b, nn.Linear):
                pairs.append(LoraPair(name.removeprefix(_PEFT_PREFIX), a, b))
    return tuple(pairs)


def trained_parameters(model: Any) -> dict[str, nn.Parameter]:
    """Return the parameters that the active adapter trained, by full name, whether frozen now or not."""
    from peft.tuners.lora import LoraLayer
    from peft.utils.other import AuxiliaryTrainingWrapper

    adapter = model.active_adapter
    config = model.peft_config[adapter]
    prefixes: set[str] = set()
    lora_biases: set[str] = set()
    for name, module in model.named_modules():
        if isinstance(module, LoraLayer):
            prefixes.update(f"{name}.{kind}.{adapter}" for kind in module.adapter_layer_names)
            if config.bias == "lora_only":
                lora_biases.add(f"{name}.base_layer.bias")
        elif isinstance(module, AuxiliaryTrainingWrapper):
            # modules_to_save keeps whole copies, trainable tokens keep deltas; the originals stay frozen.
            kinds = ("modules_to_save", "token_adapter.trainable_tokens_delta")
            prefixes.update(f"{name}.{kind}.{adapter}" for kind in kinds)
    owned = tuple(f"{prefix}." for prefix in prefixes)
    chosen = {}
    for name, parameter in model.named_parameters():
        bias = name.endswith("bias") if config.bias == "all" else name in lora_biases
        if bias or name in prefixes or name.startswith(owned):
            chosen[name] = parameter
    return chosen


def _kind(name: str) -> str:
    """Which kind of trained parameter a name outside the LoRA pairs belongs to."""
    kinds = (
        ("lora_magnitude_vector", "DoRA magnitude"),
        ("lora_embedding_", "LoRA on embeddings"),
        ("modules_to_save", "modules_to_save"),
        ("trainable_tokens", "trainable tokens"),
        ("lora_", "LoRA outside linear layers"),
    )
    if name.endswith("bias"):
        return "bias"
    return next((kind for part, kind in kinds if part in name), "other")


def _bare_parameter_kinds(model: nn.Module) -> dict[str, str]:
    """Kinds by prefix of the LoRA that sits on parameters without a layer of their own."""
    from peft.tuners.lora.layer import ParamWrapper

    return {
        f"{name}.": "LoRA on fused experts" if module.get_param().dim() == 3 else "LoRA on a bare parameter"
        for name, module in model.named_modules()
        if isinstance(module, ParamWrapper)
    }


def _count_by_kind(model: Any, pairs: tuple[LoraPair, ...]) -> dict[str, int]:
    bare = _bare_parameter_kinds(model)
    covered = {id(weight) for pair in pairs for weight in (pair.a.weight, pair.b.weight)}
    counts = {"lora": 0}
    for name, parameter in trained_parameters(model).items():
        if id(parameter) in covered:
            kind = "lora"
        else:
            kind = next((kind for prefix, kind in bare.items() if name.startswith(prefix)), _kind(name))
        counts[kind] = counts.get(kind, 0) + parameter.numel()
    return counts


def _specs(pairs: tuple[LoraPair, ...], granularity: str) -> tuple[BlockSpec, ...]:
    specs: list[BlockSpec] = []
    offset = 0
    for pair in pairs:
        if granularity == "module":
            parts: list[tuple[str, tuple[tuple[int, ...], ...]]] = [(pair.name, pair.shapes)]
        else:
            parts = [(f"{pair.name}.lora_{m}", (s,)) for m, s in zip("AB", pair.shapes, strict=True)]
        for name, shape in parts:
            specs.append(BlockSpec(name, shape, offset))
            offset += specs[-1].size
    return tuple(specs)


def find_blocks(
    model: nn.Module, module_filter: str | None = None, granularity: Literal["module", "matrix"] = "module"
) -> LoraBlocks:
    """Return the blocks that gradients are taken for.

    Args:
        model: a PeftModel.
        module_filter: regular expression searched in each adapted layer's name; None takes all.
        granularity: one block a layer (`module`: A then B, flattened) or one a matrix.

    Raises:
        NoLoraBlocksError: the model has no LoRA on a linear layer, or the filter matches none of them.
    """
    pairs = lora_pairs(model) if hasattr(model, "peft_config") else ()
    if not pairs:
        raise NoLoraBlocksError(
            "no LoRA blocks found",
            found="no LoRA pair on any linear layer (LoRA on embeddings or convolutions has none)",
            fix="pass a PEFT LoRA adapter folder with --adapter",
        )
    kept = tuple(pair for pair in pairs if module_filter is None or re.search(module_filter, pair.name))
    if not kept:
        raise NoLoraBlocksError(
            "no LoRA blocks found: the module filter matches no adapted layer",
            where="grads.module_filter",
            found=repr(module_filter),
            expected=f"a pattern found in one of {len(pairs)} names such as {', '.join(p.name for p in pairs[:3])}",
        )
    return LoraBlocks(
        specs=_specs(kept, granularity),
        pairs=kept,
        granularity=granularity,
        trainable=_count_by_kind(model, pairs),
        n_filtered=len(pairs) - len(kept),
    )


def coverage_findings(blocks: LoraBlocks) -> tuple[Finding, ...]:
    """Return `attribution.partial_coverage` when the adapter trained what gradients cannot cover."""
    if blocks.coverage == 1.0:
        return ()
    total = sum(blocks.trainable.values())
    missed = {kind: count for kind, count in blocks.trainable.items() if kind != "lora" and count}
    parts = ", ".join(f"{kind} {count:,} ({count / total:.1%})" for kind, count in missed.items())
    return (
        Finding(
            id="attribution.partial_coverage",
            severity=Severity.HIGH if blocks.coverage < 0.5 else Severity.MEDIUM,
            title=f"Scores cover {blocks.coverage:.1%} of the parameters this adapter trained",
            evidence=f"{blocks.trainable['lora']:,} of {total:,} trained parameters are LoRA pairs on linear "
            f"layers. Not covered: {parts}. What an example did to those is not in its score.",
            fix="read the ranking as partial; to cover everything, train LoRA on linear layers only "
            "(no DoRA, no modules_to_save, bias: none)",
            figures={"coverage": blocks.coverage, "trained_parameters": total, "not_covered": missed},
        ),
    )
