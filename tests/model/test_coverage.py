"""What of each kind of adapter is attributed and what is reported, in figures worked out by hand.

The tiny models have two layers, hidden size 24, feed-forward size 40, keys and values of 12, a vocabulary of 67.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model

from gradian.model.adapter import attach_adapter
from gradian.model.lora import coverage_findings, find_blocks
from gradian.types import Severity
from tests.grads.agreement import LENGTHS, collected, largest_difference, models_own_gradients
from tests.tiny_models import loaded_from, random_examples, tiny_base
from tests.tolerances import STRATEGIES as TOLERANCE
from tests.versions import SAVES_LORA_BIASES, TRANSFORMERS_4

HIDDEN, FEED_FORWARD, KEYS, VOCABULARY, LAYERS, RANK = 24, 40, 12, 67, 2, 3
EXPERTS, ROUTED, SHARED = 4, 16, 20  # ROUTED and SHARED: feed-forward sizes of Qwen2-MoE's experts


def pair(inputs: int, outputs: int, rank: int = RANK) -> int:
    return rank * (inputs + outputs)


Q = LAYERS * pair(HIDDEN, HIDDEN)
QKV = LAYERS * pair(HIDDEN, 3 * HIDDEN)
ATTENTION = 2 * Q + 2 * LAYERS * pair(HIDDEN, KEYS)
ALL = ATTENTION + 3 * LAYERS * pair(HIDDEN, FEED_FORWARD)
HEAD = pair(HIDDEN, VOCABULARY)
# One factor pair an expert, side by side in one matrix: gate and up are one parameter.
MIXTRAL = LAYERS * EXPERTS * (pair(HIDDEN, 2 * FEED_FORWARD) + pair(FEED_FORWARD, HIDDEN))
# Keeping the product's rank, transformers' conversion gives the fused gate and up twice the rank.
MIXTRAL_CONVERTED = LAYERS * EXPERTS * (pair(HIDDEN, 2 * FEED_FORWARD, 2 * RANK) + pair(FEED_FORWARD, HIDDEN))
QWEN2_MOE = LAYERS * EXPERTS * (pair(HIDDEN, 2 * ROUTED) + pair(ROUTED, HIDDEN))
ROUTER = LAYERS * pair(HIDDEN, EXPERTS)
SHARED_EXPERT = LAYERS * (3 * pair(HIDDEN, SHARED) + pair(HIDDEN, 1))
FUSED = {"target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj", "mlp.gate.weight"]}


@dataclass(frozen=True)
class Kind:
    family: str
    settings: dict[str, Any]
    covered: int
    missed: dict[str, int] = field(default_factory=dict)


Q_ONLY = ["q_proj"]
KINDS: dict[str, Kind] = {
    "every linear": Kind("llama", {"target_modules": "all-linear"}, ALL),
    "DoRA": Kind(
        "llama",
        {"target_modules": "all-linear", "use_dora": True},
        ALL,
        {"DoRA magnitude": LAYERS * (2 * HIDDEN + 2 * KEYS + 2 * FEED_FORWARD + HIDDEN)},
    ),
    "modules_to_save=[lm_head]": Kind(
        "llama",
        {"target_modules": Q_ONLY, "modules_to_save": ["lm_head"]},
        Q,
        {"modules_to_save": HIDDEN * VOCABULARY},
    ),
    "LoRA on embed_tokens": Kind(
        "llama", {"target_modules": ["q_proj", "embed_tokens"]}, Q, {"LoRA on embeddings": HEAD}
    ),
    "LoRA on lm_head": Kind("llama", {"target_modules": ["q_proj", "lm_head"]}, Q + HEAD),
    "bias=lora_only": Kind(
        "gpt_neox",
        {"target_modules": ["query_key_value"], "bias": "lora_only"},
        QKV,
        {"bias": LAYERS * 3 * HIDDEN},
    ),
    "bias=all": Kind(
        "gpt_neox",
        {"target_modules": ["query_key_value"], "bias": "all"},
        QKV,
        # Of query_key_value, dense, the feed-forward pair, two norms a layer, and the last norm.
        {"bias": LAYERS * (3 * HIDDEN + HIDDEN + FEED_FORWARD + HIDDEN + 2 * HIDDEN) + HIDDEN},
    ),
    "lora_bias": Kind("llama", {"target_modules": Q_ONLY, "lora_bias": True}, Q, {"bias": LAYERS * HIDDEN}),
    "trainable_token_indices": Kind(
        "llama",
        {"target_modules": Q_ONLY, "trainable_token_indices": [3, 4]},
        Q,
        {"trainable tokens": 2 * HIDDEN},
    ),
    "layers_to_transform": Kind("llama", {"target_modules": Q_ONLY, "layers_to_transform": [1]}, Q // 2),
    "regular expression": Kind("llama", {"target_modules": r".*layers\.0\..*q_proj"}, Q // 2),
    "Mixtral, fused experts and router": Kind(
        "mixtral",
        {"target_modules": Q_ONLY, **FUSED},
        Q,
        {"LoRA on fused experts": MIXTRAL, "LoRA on a bare parameter": ROUTER},
    ),
    "Qwen2-MoE, fused experts and router": Kind(
        "qwen2_moe",
        {"target_modules": Q_ONLY, **FUSED},
        Q,
        {"LoRA on fused experts": QWEN2_MOE, "LoRA on a bare parameter": ROUTER},
    ),
    "Mixtral, all-linear": Kind(
        "mixtral",
        {"target_modules": "all-linear"},
        ATTENTION,
        {"LoRA on fused experts": MIXTRAL_CONVERTED, "LoRA on a bare parameter": ROUTER},
    ),
    "Qwen2-MoE, all-linear": Kind("qwen2_moe", {"target_modules": "all-linear"}, ATTENTION + SHARED_EXPERT),
}


def marks_of(name: str) -> list[pytest.MarkDecorator]:
    if "MoE" in name or "Mixtral" in name:
        return [pytest.mark.skipif(TRANSFORMERS_4, reason="experts are not fused before transformers 5")]
    return [SAVES_LORA_BIASES] if name == "bias=lora_only" else []


def tuned(kind: Kind) -> Any:
    """A fine-tuned model of the kind, as PEFT trains it, every trained parameter moved."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        settings = {"r": RANK, "lora_alpha": 2 * RANK, "task_type": "CAUSAL_LM", **kind.settings}
        model = get_peft_model(tiny_base(kind.family), LoraConfig(**settings))
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.eval()


@pytest.mark.filterwarnings("ignore:`lora_bias=True` was passed")
@pytest.mark.filterwarnings("ignore:Adapter 'default'. 2 LoRA tensor.* have invalid shape")
@pytest.mark.filterwarnings("ignore:Careful, disabling adapter layers with bias")
@pytest.mark.filterwarnings("ignore:The following (rank|alpha)_pattern keys")
@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing")
@pytest.mark.parametrize("name", [pytest.param(name, marks=marks_of(name)) for name in KINDS])
def test_what_is_attributed_is_exact_and_the_rest_is_reported_to_the_last_parameter(
    name: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    kind = KINDS[name]
    model = tuned(kind)
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert trained == kind.covered + sum(kind.missed.values())

    model.save_pretrained(tmp_path, save_embedding_layers=False)
    attached = attach_adapter(tiny_base(kind.family), str(tmp_path))
    loaded = replace(loaded_from(attached.model), base_values=attached.base_values)
    ids = torch.arange(3, 11)[None]
    torch.testing.assert_close(loaded.model(ids).logits, model(ids).logits, rtol=1e-4, atol=1e-5)
    with loaded.adapter_disabled():
        torch.testing.assert_close(
            loaded.model(ids).logits, tiny_base(kind.family)(ids).logits, rtol=1e-4, atol=1e-5
        )

    blocks = find_blocks(loaded.model)
    assert blocks.trainable == {"lora": kind.covered, **kind.missed}
    assert blocks.coverage == kind.covered / trained
    assert sum(spec.size for spec in blocks.specs) == kind.covered
    record_property(f"coverage {name}", blocks.coverage)
    encoded = random_examples(LENGTHS)
    found = collected(loaded, encoded, batch_size=3)
    assert largest_difference(found, models_own_gradients(loaded, encoded)) <= TOLERANCE[torch.float32]
    findings = coverage_findings(blocks)
    assert [finding.id for finding in findings] == ["attribution.partial_coverage"] * bool(kind.missed)
    for finding in findings:
        assert finding.title == (
            f"Scores cover {kind.covered / trained:.1%} of the parameters this adapter trained"
        )
        assert finding.severity == (Severity.HIGH if 2 * kind.covered < trained else Severity.MEDIUM)
        for what, count in kind.missed.items():
            assert f"{what} {count:,} ({count / trained:.1%})" in finding.evidence
