"""Projected blocks: which of an adapter's blocks are projected, and with which random numbers."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from gradian.config.schema import GradsConfig
from gradian.ops.projection import projection, projection_transposed, stream_key
from gradian.types import BlockSpec


def projected_specs(specs: Sequence[BlockSpec], dim: int | None) -> tuple[BlockSpec, ...]:
    """Return the blocks as they are stored.

    A block that is no larger than `dim` stays as it is: projecting it would cost accuracy and save nothing.
    """
    result: list[BlockSpec] = []
    offset = 0
    for spec in specs:
        shape = spec.shape if dim is None or spec.size <= dim else ((dim,),)
        result.append(BlockSpec(spec.name, shape, offset))
        offset += result[-1].size
    return tuple(result)


def project_blocks(blocks: Sequence[Tensor], specs: Sequence[BlockSpec], grads: GradsConfig) -> list[Tensor]:
    """Project captured blocks [b, d_l] as configured.

    Each block's random numbers depend on its name and `grads.projection_seed` only, not on which other
    blocks there are.

    Args:
        blocks: captured gradients.
        specs: the blocks before projection.
        grads: `projection_dim`, `projection_kind` and `projection_seed` are read.

    Returns:
        Per block [b, projection_dim], or the block itself where it is no larger.
    """
    dim = grads.projection_dim
    if dim is None:
        return list(blocks)
    return [
        projection(block, dim, grads.projection_kind, stream_key(grads.projection_seed, spec.name))
        if spec.size > dim
        else block
        for block, spec in zip(blocks, specs, strict=True)
    ]


def unproject_directions(
    directions: Sequence[Tensor], specs: Sequence[BlockSpec], grads: GradsConfig
) -> list[Tensor]:
    """Return per block P^T v [m, d_l] for directions v [m, k]: <P^T v, g> = <v, P g> for every gradient g.

    Args:
        directions: over projected blocks, as `project_blocks` gives them.
        specs: the blocks before projection.
        grads: as in `project_blocks`.
    """
    dim = grads.projection_dim
    if dim is None:
        return list(directions)
    return [
        projection_transposed(
            direction, spec.size, grads.projection_kind, stream_key(grads.projection_seed, spec.name)
        )
        if spec.size > dim
        else direction
        for direction, spec in zip(directions, specs, strict=True)
    ]
