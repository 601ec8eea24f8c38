"""Random projection of gradients to k dimensions that keeps inner products in expectation.

    countsketch   y_c = sum_{j: h(j) = c} s(j) x_j          h(j) in [0, k), s(j) = +-1
    rademacher    y_c = (1 / sqrt(k)) sum_j s(j, c) x_j     s(j, c) = +-1

h and s come from a counter-based integer hash (the finaliser of splitmix64 over seed, stream and position),
in plain 64-bit arithmetic that wraps: the same numbers on every machine, device and library version.

The sums are defined to the last bit too, so that a row projects to the same bits whatever shares its batch and
whatever computes it. A countsketch adds a bucket's members in order into `lanes(dim)` sums, and halves those by
adding the second half to the first until one is left. A Rademacher projection splits the values of a tile of
256 positions into two pieces, whole multiples of a unit that is relative to the tile's largest magnitude m: any
order of adding a piece is exact. What both pieces leave, 2^-30 m in float32, is dropped: no more than 2^-23 of
the sum of the tile's magnitudes. Tiles add up in order, 16 at a time.
"""

from __future__ import annotations

import hashlib
import math
from typing import Any, Literal

import torch
from torch import Tensor

from gradian.ops._dispatch import Op, triton_kernel, triton_obstacle

Kind = Literal["countsketch", "rademacher"]
OP = Op[Any]("projection")

# splitmix64's constants (Steele, Lea, Flood 2014) as signed 64-bit numbers.
_GAMMA = 0x9E3779B97F4A7C15 - (1 << 64)
_MIX_1 = 0xBF58476D1CE4E5B9 - (1 << 64)
_MIX_2 = 0x94D049BB133111EB - (1 << 64)
_TILE_ELEMENTS = 1 << 22
# Positions of a Rademacher tile, and tiles that add up before they join the whole.
TILE = 256
TILES = 16


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


def lanes(dim: int) -> int:
    """Return how many sums a countsketch keeps for a bucket: more where buckets are few and long."""
    return 8 if dim >= 512 else 64


def _buckets(size: int, dim: int, key: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return h, int64 [size], and s, [size] in the dtype of `like`."""
    bits = counter_hash(torch.arange(size, device=like.device), key)
    # The remainder's bias is below dim / 2^62.
    return _shift_right(bits, 2) % dim, (1 - 2 * (bits & 1)).to(like.dtype)


def _countsketch(values: Tensor, dim: int, key: int) -> Tensor:
    size, width = values.shape[1], lanes(dim)
    bucket, sign = _buckets(size, dim, key, values)
    # A table of each bucket's members, padded with a zero.
    order = torch.argsort(bucket, stable=True)
    counts = torch.bincount(bucket, minlength=dim)
    starts = counts.cumsum(0) - counts
    slot = torch.arange(size, device=values.device) - starts[bucket[order]]
    steps = -(-int(counts.max()) // width)
    members = torch.full((dim, steps * width), size, device=values.device)
    members[bucket[order], slot] = order
    signed = torch.cat([values * sign, values.new_zeros(values.shape[0], 1)], dim=1)
    return torch.stack([_bucket_sums(row[members].view(dim, steps, width)) for row in signed])


def _bucket_sums(members: Tensor) -> Tensor:
    """Add up [dim, steps, lanes] to [dim]."""
    sums = members.new_zeros(members.shape[0], members.shape[2])
    for step in range(members.shape[1]):
        sums += members[:, step]
    while sums.shape[1] > 1:
        half = sums.shape[1] // 2
        sums = sums[:, :half] + sums[:, half:]
    return sums[:, 0]


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


def _pieces(tiles: Tensor) -> tuple[Tensor, Tensor]:
    """Split values [b, n, TILE] into pieces [n, 2b, TILE] whose signed sums are exact, and scales [n, b, 1].

    A piece is a multiple of 2^-15 (2^-30 for the second) in float32, of 2^-44 (2^-88) in float64, and at most
    2^8 units short of what the mantissa holds.
    """
    info = torch.finfo(tiles.dtype)
    # Powers of two that have an inverse.
    largest = -int(math.log2(info.tiny))
    exponent = torch.frexp(tiles.abs().amax(dim=2, keepdim=True)).exponent.clamp(-largest, largest)
    scaled = torch.ldexp(tiles, -exponent)
    # Adding what has no bits below the unit, and taking it away again, rounds to the unit.
    coarse = 1.5 * 2.0**8
    first = (scaled + coarse) - coarse
    fine = coarse * info.eps * 2.0**8
    second = ((scaled - first) + fine) - fine
    scale = torch.ldexp(torch.ones_like(exponent, dtype=tiles.dtype), exponent)
    return torch.cat([first, second]).transpose(0, 1).contiguous(), scale.transpose(0, 1)


def _rademacher(values: Tensor, dim: int, key: int) -> Tensor:
    rows, size = values.shape
    n = -(-size // TILE)
    padded = torch.nn.functional.pad(values, (0, n * TILE - size))
    pieces, scale = _pieces(padded.view(rows, n, TILE))
    out = values.new_zeros(rows, dim)
    at_once = min(TILES, max(1, _TILE_ELEMENTS // (dim * TILE)))
    for first in range(0, n, TILES):
        part = torch.zeros_like(out)
        end = min(first + TILES, n)
        for start in range(first, end, at_once):
            stop = min(start + at_once, end)
            signs = _signs(start * TILE, (stop - start) * TILE, dim, key, values)
            sums = torch.bmm(pieces[start:stop], signs.view(stop - start, TILE, dim))
            for tile in (sums[:, :rows] + sums[:, rows:]) * scale[start:stop]:
                part += tile
        out += part
    return out.mul_(1.0 / math.sqrt(dim))


@OP.implementation("reference")
def projection_reference(values: Tensor, dim: int, kind: Kind, key: int) -> Tensor:
    """The definition in pure torch; see `projection`."""
    return (_countsketch if kind == "countsketch" else _rademacher)(values, dim, key)


def _triton_obstacle(device: torch.device, dtype: torch.dtype) -> str | None:
    return triton_obstacle(device) if dtype == torch.float32 else "the kernels take float32"


@OP.implementation("triton", _triton_obstacle)
def _projection_triton(values: Tensor, dim: int, kind: Kind, key: int) -> Tensor:
    kernels = triton_kernel("projection")
    projected: Tensor
    if kind == "countsketch":
        projected = kernels.countsketch(values, dim, key, lanes(dim))
    else:
        projected = kernels.rademacher(values, dim, key, TILE, TILES)
    return projected


def projection(values: Tensor, dim: int, kind: Kind, key: int, impl: str | None = None) -> Tensor:
    """Return the rows projected to `dim` dimensions.

    Args:
        values: [b, d], float32 or float64; finite.
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


def projection_transposed(values: Tensor, size: int, kind: Kind, key: int) -> Tensor:
    """Return the rows y [b, k] taken back to `size` dimensions by the projection's transpose.

    countsketch   x_j = s(j) y_{h(j)}
    rademacher    x_j = (1 / sqrt(k)) sum_c s(j, c) y_c

    Args:
        values: [b, k], float32 or float64.
        size: d, the width before projection.
        kind: family of projections.
        key: as in `projection`.

    Returns:
        [b, size] in the dtype of `values`.
    """
    rows, dim = values.shape
    if kind == "countsketch":
        bucket, sign = _buckets(size, dim, key, values)
        return values[:, bucket] * sign
    out = values.new_empty(rows, size)
    step = max(1, _TILE_ELEMENTS // dim)
    for start in range(0, size, step):
        count = min(step, size - start)
        out[:, start : start + count] = values @ _signs(start, count, dim, key, values).T
    return out.mul_(1.0 / math.sqrt(dim))
