"""Per-example gradient of a linear layer's weight.

For y = x W^T with inputs X and output gradients G: grad_b = sum_t G[b, t, :] outer X[b, t, :].
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gradian.ops._dispatch import Op

OP = Op[Any]("per_example_grad")


@OP.implementation("reference")
def per_example_grad_reference(inputs: Tensor, output_grads: Tensor) -> Tensor:
    """The definition in pure torch; see `per_example_grad`."""
    maths = torch.float64 if inputs.dtype == torch.float64 else torch.float32
    return torch.bmm(output_grads.to(maths).transpose(1, 2), inputs.to(maths))


def per_example_grad(inputs: Tensor, output_grads: Tensor, impl: str | None = None) -> Tensor:
    """Return each example's weight gradient, accumulated in float32.

    Args:
        inputs: X [b, t, i].
        output_grads: G [b, t, o].
        impl: implementation to use; None leaves the choice to `gradian.ops._dispatch`.

    Returns:
        [b, o, i], float32 (float64 for float64 inputs).

    Raises:
        ValueError: the shapes do not fit.
        OpUnavailableError: `impl` cannot run here.
    """
    if inputs.dim() != 3 or output_grads.dim() != 3 or inputs.shape[:2] != output_grads.shape[:2]:
        raise ValueError(
            f"want inputs [b, t, i] and output gradients [b, t, o], "
            f"got {tuple(inputs.shape)}, {tuple(output_grads.shape)}"
        )
    grads: Tensor = OP.choose(inputs, impl)(inputs, output_grads)
    return grads
