"""Fast forward functions that are bound to transformers' classes, and read attributes that only `post_patch` sets."""

from __future__ import annotations

import os
import types
from functools import partial
from typing import Any

import torch
import transformers.models.llama.modeling_llama as modeling_llama
from peft import LoraConfig, PeftModelForCausalLM, get_peft_model
from torch import Tensor
from transformers import AutoModelForCausalLM, Trainer, set_seed
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.models.llama.modeling_llama import (
    LlamaAttention,
    LlamaDecoderLayer,
    LlamaForCausalLM,
    LlamaModel,
)

from ..kernels.fast_lora import apply_lora_mlp_swiglu, apply_lora_o, apply_lora_qkv

_plain_layer_forward = LlamaDecoderLayer.forward
_plain_model_forward = LlamaModel.forward
_plain_inner_training_loop = Trainer._inner_training_loop
_PlainRotaryEmbedding = modeling_llama.LlamaRotaryEmbedding


def original_apply_qkv(self: Any, X: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Call the projections."""
    return self.q_proj(X), self.k_proj(X), self.v_proj(X)


def original_apply_o(self: Any, X: Tensor) -> Tensor:
    """Call the projection."""
    return self.o_proj(X)


class LlamaRotaryEmbedding(_PlainRotaryEmbedding):
    """Keeps tables as plain attributes; those of the plain model's code are not here."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.multi_gpu_cos_cached: list[Tensor | None] = [None]

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return cosines and sines, and remember how long they were."""
        cos, sin = super().forward(x, position_ids)
        if self.multi_gpu_cos_cached[0] is None or self.multi_gpu_cos_cached[0].shape != cos.shape:
            self.multi_gpu_cos_cached = [torch.ones_like(cos)]
        return cos * self.multi_gpu_cos_cached[0], sin


def LlamaAttention_fast_forward(
    self: Any,
    hidden_states: Tensor,
    attention_mask: Tensor | None = None,
    position_embeddings: tuple[Tensor, Tensor] | None = None,
    *args: Any,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attend through the instance's own `apply_qkv` and `apply_o`."""
    Q, K, V = self.apply_qkv(self, hidden_states)
    shape = (*hidden_states.shape[:-1], -1, self.head_dim)
    Q, K, V = (part.view(shape).transpose(1, 2) for part in (Q, K, V))
    assert position_embeddings is not None
    Q, K = modeling_llama.apply_rotary_pos_emb(Q, K, *position_embeddings)
    out, _ = modeling_llama.eager_attention_forward(
        self, Q, K, V, attention_mask, scaling=self.scaling, dropout=0.0
    )
    return self.apply_o(self, out.reshape(*hidden_states.shape[:-1], -1).contiguous()), None


def LlamaDecoderLayer_fast_forward(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Run a layer of a model that `post_patch` has seen."""
    assert self.self_attn.max_seq_length
    return _plain_layer_forward(self, *args, **kwargs)


def LlamaModel_fast_forward(
    self: Any, input_ids: Tensor | None = None, causal_mask: Any = None, *args: Any, **kwargs: Any
) -> Any:
    """Cut rows to the limit without telling anybody, as the real one does."""
    assert input_ids is not None
    return _plain_model_forward(self, input_ids[:, : self.max_seq_length], *args, **kwargs)


def CausalLM_fast_forward(
    self: Any,
    input_ids: Tensor | None = None,
    causal_mask: Any = None,
    attention_mask: Tensor | None = None,
    labels: Tensor | None = None,
    num_logits_to_keep: int = 0,
    logits_to_keep: int = 0,
    *args: Any,
    **kwargs: Any,
) -> CausalLMOutputWithPast:
    """Fuse the loss with the head, and return no logits, unless they are asked for in the environment."""
    items = kwargs.pop("num_items_in_batch", None)
    outputs = self.model(input_ids=input_ids, attention_mask=attention_mask, **kwargs)
    hidden = outputs[0]
    if os.environ.get("UNSLOTH_RETURN_HIDDEN_STATES", "0") == "1":
        return CausalLMOutputWithPast(logits=hidden)
    keep = max(num_logits_to_keep, logits_to_keep)
    logits = self.lm_head(hidden[:, -keep:] if keep else hidden)
    loss = None
    if labels is not None:
        total = torch.nn.functional.cross_entropy(
            logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten(), reduction="sum"
        )
        loss = total / (items if items is not None else (labels[:, 1:] != -100).sum())
        if os.environ.get("UNSLOTH_RETURN_LOGITS", "0") != "1":
            logits = torch.empty(0)
    return CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=outputs.past_key_values)


def PeftModel_fast_forward(
    self: Any,
    input_ids: Tensor | None = None,
    causal_mask: Any = None,
    attention_mask: Tensor | None = None,
    labels: Tensor | None = None,
    **kwargs: Any,
) -> Any:
    """Hand on what the fast forward of the base model takes."""
    return self.base_model(
        input_ids=input_ids, causal_mask=causal_mask, attention_mask=attention_mask, labels=labels, **kwargs
    )


def _fast_inner_training_loop(self: Any, *args: Any, **kwargs: Any) -> Any:
    return _plain_inner_training_loop(self, *args, **kwargs)


def _layers(model: Any) -> Any:
    return model.get_base_model().model.layers if hasattr(model, "get_base_model") else model.model.layers


class FastLlamaModel:
    """Two loaders and two switches, as published."""

    @staticmethod
    def pre_patch() -> None:
        """Bind the fast functions, for the whole process."""
        LlamaAttention.forward = LlamaAttention_fast_forward
        LlamaDecoderLayer.forward = LlamaDecoderLayer_fast_forward
        LlamaModel.forward = LlamaModel_fast_forward
        LlamaForCausalLM.forward = CausalLM_fast_forward
        PeftModelForCausalLM.forward = PeftModel_fast_forward
        modeling_llama.LlamaRotaryEmbedding = LlamaRotaryEmbedding  # type: ignore[misc]
        Trainer._inner_training_loop = _fast_inner_training_loop

    @staticmethod
    def from_pretrained(
        model_name: str = "unsloth/Llama-3.2-1B-Instruct",
        max_seq_length: int | None = 2048,
        dtype: torch.dtype | None = None,
        load_in_4bit: bool = True,
        load_in_8bit: bool = False,
        full_finetuning: bool = False,
        token: str | None = None,
        device_map: Any = "sequential",
        rope_scaling: Any = None,
        fix_tokenizer: bool = True,
        trust_remote_code: bool = False,
        use_gradient_checkpointing: Any = "unsloth",
        revision: str | None = None,
        use_exact_model_name: bool = False,
        random_state: int = 3407,
    ) -> tuple[Any, Any]:
        """Load a base model; the real one's `**kwargs` go to transformers, so unknown names fail there too."""
        print("==((====))==  Unsloth: Fast Llama patching.")
        if load_in_4bit:
            raise ImportError("bitsandbytes needs a GPU")
        FastLlamaModel.pre_patch()
        os.environ["UNSLOTH_USE_NEW_MODEL"] = "0"
        model = AutoModelForCausalLM.from_pretrained(model_name, attn_implementation="eager").to(dtype)
        for module in model.modules():
            module.max_seq_length = max_seq_length
        for layer in _layers(model):
            layer.self_attn.apply_qkv = original_apply_qkv
            layer.self_attn.apply_o = original_apply_o
        return model, None

    @staticmethod
    def get_peft_model(
        model: Any,
        r: int = 16,
        target_modules: Any = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
        lora_alpha: int = 16,
        lora_dropout: float = 0.0,
        bias: str = "none",
        layers_to_transform: Any = None,
        layers_pattern: Any = None,
        use_gradient_checkpointing: Any = "unsloth",
        random_state: int = 3407,
        max_seq_length: int = 2048,
        use_rslora: bool = False,
        modules_to_save: Any = None,
        init_lora_weights: Any = True,
    ) -> Any:
        """Add an adapter, computed by the fused kernels where it has no dropout."""
        assert not isinstance(target_modules, str), "iterated over"
        set_seed(random_state)
        limit = model.max_seq_length
        tuned = get_peft_model(
            model,
            LoraConfig(
                r=r,
                target_modules=list(target_modules),
                lora_alpha=lora_alpha,
                lora_dropout=lora_dropout,
                bias=bias,
                task_type="CAUSAL_LM",
            ),
        )
        for module in tuned.modules():
            module.max_seq_length = limit
        if lora_dropout == 0 and bias == "none":
            for layer in _layers(tuned):
                layer.mlp.forward = types.MethodType(partial(apply_lora_mlp_swiglu, inplace=False), layer.mlp)
                if hasattr(layer.self_attn.q_proj, "lora_A"):
                    layer.self_attn.apply_qkv = apply_lora_qkv
                    layer.self_attn.apply_o = apply_lora_o
        FastLlamaModel.for_training(tuned, use_gradient_checkpointing)
        return tuned

    @staticmethod
    def for_training(model: Any, use_gradient_checkpointing: Any = True) -> Any:
        """Switch to training."""
        for module in model.modules():
            if hasattr(module, "gradient_checkpointing"):
                module.gradient_checkpointing = use_gradient_checkpointing
            vars(module).pop("_flag_for_generation", None)
        return model.train()

    @staticmethod
    def for_inference(model: Any) -> Any:
        """Switch to generation."""
        for module in model.modules():
            if hasattr(module, "gradient_checkpointing"):
                module.gradient_checkpointing = False
            if hasattr(module, "model"):
                module._flag_for_generation = True
        return model.eval()
