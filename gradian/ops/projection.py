"""Random projection of gradients to k dimensions that keeps inner products in expectation.

    countsketch   y_c = sum_{j: h(j) = c} s(j) x_j          h(j) in [0, k), s(j) = +-1
    rademacher    y_c = (1 / sqrt(k)) sum_j s(j, c) x_j     s(j, c) = +-1

h and s come from a counter-based integer hash (the finaliser of splitmix64 over seed, stream and position),
in plain 64-bit arithmetic that wraps: the same numbers on every machine, device and library version.
"""

from __future__ import annotations

import hashlib
import math
from typing import Any, Literal

import torch
from torch import Tensor

from gradian.ops._dispatch import Op

Kind = Literal["countsketch", "rademacher"]
OP = Op[Any]("projection")

# splitmix64's constants (Steele, Lea, Flood 2014) as signed 64-bit numbers.
_GAMMA = 0x9E3779B97F4A7C15 - (1 << 64)
_MIX_1 = 0xBF58476D1CE4E5B9 - (1 << 64)
_MIX_2 = 0x94D049BB133111EB - (1 << 64)
_TILE_ELEMENTS = 1 << 22


def _shift_right(x: Tensor, bits: int) -> Tensor:
    # torch shifts int64 arithmetically; the mask drops the copies of the sign.
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def counter_hash(counters: Tensor, key: int) -> Tensor:
    """Return 64 well-mixed bits for each counter.

    Args:
        counters: int64, any shape.
        key: signed 64-bit number that selects the stream.

    Returns:
        int64, same shape.
    """
    x = (counters + 1) * _GAMMA + key
    x = (x ^ _shift_right(x, 30)) * _MIX_1
    x = (x ^ _shift_right(x, 27)) * _MIX_2
    return x ^ _shift_right(x, 31)


def stream_key(seed: int, stream: str) -> int:
    """Return the signed 64-bit key of a named stream of random numbers under a seed."""
    digest = hashlib.sha256(f"{seed}:{stream}".encode()).digest()
    return int.from_bytes(digest[:8], "little", signed=True)


def _countsketch(values: Tensor, dim: int, key: int) -> Tensor:
    size = values.shape[1]
    bits = counter_hash(torch.arange(size, device=values.device), key)
    sign = (1 - 2 * (bits & 1)).to(values.dtype)
    # The remainder's bias is below dim / 2^62.
    bucket = _shift_right(bits, 2) % dim
    # A table of each bucket's members, padded with a zero: sums in a fixed order on any device.
    order = torch.argsort(bucket, stable=True)
    counts = torch.bincount(bucket, minlength=dim)
    starts = counts.cumsum(0) - counts
    slot = torch.arange(size, device=values.device) - starts[bucket[order]]
    members = torch.full((dim, max(1, int(counts.max()))), size, device=values.device)
    members[bucket[order], slot] = order
    signed = torch.cat([values * sign, values.new_zeros(values.shape[0], 1)], dim=1)
    return torch.stack([row[members].sum(dim=1) for row in signed])


def _signs(start: int, rows: int, dim: int, key: int, like: Tensor) -> Tensor:
    """Return s(j, c) for j in [start, start + rows): [rows, dim] of +-1 in the dtype of `like`."""
    words = -(-dim // 64)
    counters = torch.arange(start * words, (start + rows) * words, device=like.device)
    bits = counter_hash(counters, key)
    # One lookup gives eight signs.
    byte = torch.stack([_shift_right(bits, 8 * i) & 255 if i else bits & 255 for i in range(8)], dim=1)
    table = 1 - 2 * (
        (torch.arange(256, device=like.device)[:, None] >> torch.arange(8, device=like.device)) & 1
    )
    return table.to(like.dtype)[byte.reshape(-1)].reshape(rows, words * 64)[:, :dim]


def _rademacher(values: Tensor, dim: int, key: int) -> Tensor:
    out = values.new_zeros(values.shape[0], dim)
    step = max(1, _TILE_ELEMENTS // dim)
    for start in range(0, values.shape[1], step):
        part = values[:, start : start + step]
        out.addmm_(part, _signs(start, part.shape[1], dim, key, values))
    return out.mul_(1.0 / math.sqrt(dim))


@OP.implementation("reference")
def projection_reference(values: Tensor, dim: int, kind: Kind, key: int) -> Tensor:
    """The definition in pure torch; see `projection`."""
    return (_countsketch if kind == "countsketch" else _rademacher)(values, dim, key)


def projection(values: Tensor, dim: int, kind: Kind, key: int, impl: str | None = None) -> Tensor:
    """Return the rows projected to `dim` dimensions.

    Args:
        values: [b, d], float32 or float64.
        dim: k.
        kind: family of projections.
        key: selects the projection (see `stream_key`).
        impl: implementation to use; None leaves the choice to `gradian.ops._dispatch`.

    Returns:
        [b, dim] in the dtype of `values`.

    Raises:
        ValueError: the shape, dtype or width does not fit.
        OpUnavailableError: `impl` cannot run here.
    """
    if values.dim() != 2 or values.dtype not in (torch.float32, torch.float64) or dim < 1:
        raise ValueError(
            f"want float32 or float64 [b, d] and dim >= 1, got {values.dtype} {tuple(values.shape)}, {dim}"
        )
    projected: Tensor = OP.choose(values, impl)(values, dim, kind, key)
    return projected
