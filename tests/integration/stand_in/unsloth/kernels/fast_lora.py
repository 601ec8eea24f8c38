"""LoRA products that read the adapter's weights and never call the adapter's modules."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def _product(projection: Any, x: Tensor) -> Tensor:
    a, b = projection.lora_A["default"].weight, projection.lora_B["default"].weight
    scale = projection.scaling["default"]
    return projection.base_layer(x) + scale * (x @ a.T @ b.T)


def apply_lora_qkv(self: Any, X: Tensor, inplace: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys and values."""
    return _product(self.q_proj, X), _product(self.k_proj, X), _product(self.v_proj, X)


def apply_lora_o(self: Any, X: Tensor) -> Tensor:
    """Return the attention's output."""
    return _product(self.o_proj, X)


def apply_lora_mlp_swiglu(self: Any, X: Tensor, inplace: bool = True) -> Tensor:
    """Return the feed-forward block's output."""
    gate = torch.nn.functional.silu(_product(self.gate_proj, X))
    return _product(self.down_proj, gate * _product(self.up_proj, X))
