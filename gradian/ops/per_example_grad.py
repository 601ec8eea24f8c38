"""Per-example gradient of a linear layer's weight.

For y = x W^T with inputs X and output gradients G: grad_b = sum_t G[b, t, :] outer X[b, t, :].

`per_example_grads` makes those of many layers at once, each finished and where it belongs:

    out_b = cast(grad_b / divisor_b)        division and cast each rounded to nearest, ties to even
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gradian.ops._dispatch import Op, triton_kernel, triton_obstacle

OP = Op[Any]("per_example_grad")

_INPUTS = (torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True, eq=False)
class RowFigures:
    """What the gradients of n layers are like, before the cast.

    Attributes:
        largest: float32 [n, b]; largest magnitude of each example's gradient, NaN where it holds one. Cast to
            the dtype of `out` it is infinite exactly where an element of `out` is.
        squares: float64 [n, b]; squared norms, summed in float32 within a tile and in float64 across tiles;
            None unless asked for. They are for normalising gradients on the device. An index keeps the norms of
            what it stores, which its writer takes from the bytes.
    """

    largest: Tensor
    squares: Tensor | None


def per_example_grad_reference(inputs: Tensor, output_grads: Tensor) -> Tensor:
    """The definition in pure torch; see `per_example_grad`."""
    maths = torch.float64 if inputs.dtype == torch.float64 else torch.float32
    return torch.bmm(output_grads.to(maths).transpose(1, 2), inputs.to(maths))


def finish(grads: Tensor, out: Tensor, divisor: Tensor | None, squares: bool) -> RowFigures:
    """Divide, measure and cast one layer's gradients; see `per_example_grads`.

    Args:
        grads: [b, ...]; not needed afterwards.
        out: same shape; the storage dtype. Written to.
        divisor: float32 [b], or None for ones.
        squares: whether squared norms are wanted.

    Returns:
        Figures of one layer, [1, b].
    """
    rows = grads.flatten(1)
    if divisor is not None:
        rows = rows / divisor[:, None]
    out.copy_(rows.view_as(out))
    largest = torch.linalg.vector_norm(rows, ord=float("inf"), dim=1).float()
    return RowFigures(largest[None], rows.double().square().sum(dim=1)[None] if squares else None)


def joined(parts: Sequence[RowFigures]) -> RowFigures:
    """Return the figures of several lists of layers as one's."""
    squares = [part.squares for part in parts if part.squares is not None]
    return RowFigures(torch.cat([part.largest for part in parts]), torch.cat(squares) if squares else None)


@OP.implementation("reference")
def per_example_grads_reference(
    pairs: Sequence[tuple[Tensor, Tensor]], out: Sequence[Tensor], divisor: Tensor | None, squares: bool
) -> RowFigures:
    """The definition in pure torch; see `per_example_grads`."""
    return joined(
        [
            finish(per_example_grad_reference(*pair), target, divisor, squares)
            for pair, target in zip(pairs, out, strict=True)
        ]
    )


def _triton_obstacle(device: torch.device, dtype: torch.dtype) -> str | None:
    if dtype not in _INPUTS:
        return "the kernel takes float32, float16 and bfloat16"
    return triton_obstacle(device)


@OP.implementation("triton", _triton_obstacle)
def _per_example_grads_triton(
    pairs: Sequence[tuple[Tensor, Tensor]], out: Sequence[Tensor], divisor: Tensor | None, squares: bool
) -> RowFigures:
    return RowFigures(*triton_kernel("per_example_grad").per_example_grads(pairs, out, divisor, squares))


def groups(like: Tensor) -> bool:
    """Whether many layers at once are faster than one by one, for inputs like these."""
    return OP.backend(like.device, like.dtype) != "reference"


def _check_pair(inputs: Tensor, output_grads: Tensor) -> None:
    if inputs.dim() != 3 or output_grads.dim() != 3 or inputs.shape[:2] != output_grads.shape[:2]:
        raise ValueError(
            f"want inputs [b, t, i] and output gradients [b, t, o], "
            f"got {tuple(inputs.shape)}, {tuple(output_grads.shape)}"
        )


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
    _check_pair(inputs, output_grads)
    if OP.backend(inputs.device, inputs.dtype, impl) == "reference":
        return per_example_grad_reference(inputs, output_grads)
    grads = inputs.new_empty((inputs.shape[0], output_grads.shape[2], inputs.shape[2]), dtype=torch.float32)
    per_example_grads([(inputs, output_grads)], [grads], impl=impl)
    return grads


def per_example_grads(
    pairs: Sequence[tuple[Tensor, Tensor]],
    out: Sequence[Tensor],
    divisor: Tensor | None = None,
    *,
    squares: bool = False,
    impl: str | None = None,
) -> RowFigures:
    """Write each example's weight gradients of n layers, accumulated in float32 and finished.

    Args:
        pairs: per layer X [b, t, i] and G [b, t, o], on one device; t, i and o differ between layers.
        out: per layer [b, o, i], float32, float16 or bfloat16 (float64 for float64 inputs); each example's
            [o, i] is contiguous, so that it may lie within a longer row. Written to.
        divisor: float32 [b]; each example's gradients are divided by its number. None: as they are.
        squares: whether squared norms are wanted.
        impl: implementation to use; None leaves the choice to `gradian.ops._dispatch`.

    Returns:
        Largest magnitudes and squared norms by layer and example.

    Raises:
        ValueError: shapes, dtypes, devices or layouts do not fit, or there is no layer.
        OpUnavailableError: `impl` cannot run here.
    """
    if not pairs or len(pairs) != len(out):
        raise ValueError(f"want as many outputs as layers, and one at least, got {len(pairs)}, {len(out)}")
    rows, device = out[0].shape[0], out[0].device
    for (inputs, output_grads), target in zip(pairs, out, strict=True):
        _check_pair(inputs, output_grads)
        shape = (rows, output_grads.shape[2], inputs.shape[2])
        kept = torch.float64 if inputs.dtype == torch.float64 else None
        fits = target.dtype == kept if kept is not None else target.dtype in _INPUTS
        inside = (
            target[:1].is_contiguous() and inputs.device == output_grads.device == target.device == device
        )
        if tuple(target.shape) != shape or inputs.shape[0] != rows or not (fits and inside):
            raise ValueError(
                f"want outputs {list(shape)} in float32, float16 or bfloat16, contiguous within an example, on "
                f"{inputs.device}, got {list(target.shape)} {target.dtype} on {target.device}"
            )
    if divisor is not None and (
        divisor.shape != (rows,) or divisor.dtype != torch.float32 or divisor.device != device
    ):
        raise ValueError(
            f"want float32 divisors [{rows}] on {device}, got {divisor.dtype} {tuple(divisor.shape)}"
        )
    figures: RowFigures = OP.choose(pairs[0][0], impl)(pairs, out, divisor, squares)
    return figures
