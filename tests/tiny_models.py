"""Tiny random causal language models of each architecture, with LoRA on every linear layer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    GemmaConfig,
    GPT2Config,
    GPTNeoXConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MixtralConfig,
    PretrainedConfig,
    Qwen2Config,
    Qwen2MoeConfig,
)

from gradian.model.load import LoadedModel, freeze_for_gradients
from gradian.types import EncodedExample

VOCABULARY = 67
_SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def family_config(family: str) -> PretrainedConfig:
    """Return the configuration of a tiny model of a family."""
    without_groups = {key: value for key, value in _SHAPE.items() if key != "num_key_value_heads"}
    makers = {
        "llama": lambda: LlamaConfig(**_SHAPE),
        "qwen2": lambda: Qwen2Config(**_SHAPE, tie_word_embeddings=True),
        "mistral": lambda: MistralConfig(**_SHAPE, sliding_window=5, head_dim=6),
        "gemma": lambda: GemmaConfig(**_SHAPE, head_dim=6),
        "gemma2": lambda: Gemma2Config(
            **_SHAPE, head_dim=6, sliding_window=5, final_logit_softcapping=3.0, attn_logit_softcapping=5.0
        ),
        "gpt_neox": lambda: GPTNeoXConfig(**without_groups),
        "gpt2": lambda: GPT2Config(
            vocab_size=VOCABULARY,
            n_embd=24,
            n_layer=2,
            n_head=4,
            n_positions=64,
            initializer_range=0.2,
            bos_token_id=1,
            eos_token_id=2,
        ),
        "mixtral": lambda: MixtralConfig(**_SHAPE, num_local_experts=4, num_experts_per_tok=2),
        "qwen2_moe": lambda: Qwen2MoeConfig(
            **_SHAPE,
            moe_intermediate_size=16,
            shared_expert_intermediate_size=20,
            num_experts=4,
            num_experts_per_tok=2,
        ),
    }
    return makers[family]()


FAMILIES = ("llama", "qwen2", "mistral", "gemma", "gemma2", "gpt_neox", "gpt2")


def tiny_base(family: str, dtype: torch.dtype = torch.float32, seed: int = 0) -> Any:
    """Return a random base model of one of FAMILIES, or of mixtral or qwen2_moe, whose experts are fused."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(family_config(family), attn_implementation="eager")
    return model.to(dtype)


def case_base() -> Any:
    """Return a base model that the adapters of the shared cases fit: hidden size 4, two layers."""
    config = LlamaConfig(
        hidden_size=4,
        intermediate_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        vocab_size=20,
    )
    return LlamaForCausalLM(config)


def loaded_from(model: Any) -> LoadedModel:
    """Wrap a PeftModel as loading does; only the padding id is asked of the tokenizer."""
    freeze_for_gradients(model)
    parameter = next(model.parameters())
    tokenizer = SimpleNamespace(pad_token_id=0, eos_token_id=2)
    return LoadedModel(model=model, tokenizer=tokenizer, device=parameter.device, dtype=parameter.dtype)


def with_lora(base: Any, lora_dtype: torch.dtype | None = None, **lora: Any) -> LoadedModel:
    """Put a random, non-zero adapter on a base model (B would start at zero).

    Args:
        base: changed in place.
        lora_dtype: of A and B; None leaves PEFT's choice.
        lora: LoraConfig settings.
    """
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", **lora))
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                torch.nn.init.normal_(parameter, std=0.2)
                if lora_dtype is not None:
                    parameter.data = parameter.data.to(lora_dtype)
    return loaded_from(model)


def tiny_lora(
    family: str, dtype: torch.dtype = torch.float32, lora_dtype: torch.dtype | None = None, **lora: Any
) -> LoadedModel:
    """Return a random model with a random adapter, on all linear layers and with dropout by default.

    Args:
        family: one of FAMILIES.
        dtype: of the base.
        lora_dtype: of A and B; None leaves PEFT's choice.
        lora: LoraConfig settings.
    """
    settings = {"r": 3, "lora_alpha": 5, "lora_dropout": 0.3, "target_modules": "all-linear", **lora}
    settings["fan_in_fan_out"] = family == "gpt2"
    return with_lora(tiny_base(family, dtype), lora_dtype, **settings)


def random_examples(lengths: list[int], seed: int = 0, silent: tuple[int, ...] = ()) -> list[EncodedExample]:
    """Return random rows of these lengths; a random half of each row's tail is supervised.

    Args:
        lengths: tokens of each row.
        seed: of the tokens and masks.
        silent: rows without a supervised token.
    """
    generator = np.random.default_rng(seed)
    rows = []
    for position, length in enumerate(lengths):
        supervised = generator.random(length) < 0.5
        supervised[0], supervised[-1] = False, True
        if position in silent:
            supervised[:] = False
        ids = generator.integers(3, VOCABULARY, length, dtype=np.int64)
        rows.append(EncodedExample(f"row-{position}", position, ids, supervised))
    return rows
