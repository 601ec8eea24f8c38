"""Random projections of rows [b, d] to k dimensions, equal to the reference in every bit.

    countsketch   y_c = sum_{j: h(j) = c} s(j) x_j
    rademacher    y_c = (1 / sqrt(k)) sum_j s(j, c) x_j

`gradian.ops.projection` defines the hash behind h and s, and the order of every sum that is not exact.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

import triton
import triton.language as tl

from .compile_case import CompileCase

_LAUNCH = {"num_warps": 4, "num_stages": 2, "enable_fp_fusion": False}
_BLOCK = 1024  # positions that one program hashes
_MEMBERS = 512  # members of buckets that one program adds at a time
_COLUMNS = 64  # as many signs as one hash gives
_POSITIONS = 32  # of a Rademacher tile at a time


@triton.jit
def _counter_hash(counters, key):
    x = (counters.to(tl.uint64) + 1) * 0x9E3779B97F4A7C15 + key.to(tl.uint64)
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)


@triton.jit(do_not_specialize=["key"])
def buckets_kernel(buckets, size, dim, key, BLOCK: tl.constexpr):
    """Write h(j) [d], int32."""
    j = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    bits = _counter_hash(j, key)
    tl.store(buckets + j, ((bits >> 2).to(tl.int64) % dim).to(tl.int32), mask=j < size)


@triton.jit(do_not_specialize=["key"])
def countsketch_kernel(
    out, values, order, starts, by_row, dim, key, LANES: tl.constexpr, BUCKETS: tl.constexpr
):
    """Add up buckets of one row; `order` [d] holds the positions by bucket, `starts` [k + 1] where each begins."""
    c = tl.program_id(0) * BUCKETS + tl.arange(0, BUCKETS)
    row = tl.program_id(1).to(tl.int64)
    first = tl.load(starts + c, mask=c < dim, other=0)
    end = tl.load(starts + c + 1, mask=c < dim, other=0)
    sums = tl.full((BUCKETS, LANES), 0.0, dtype=tl.float32)
    for step in range(0, tl.max(end - first), LANES):
        at = (first + step)[:, None] + tl.arange(0, LANES)[None, :]
        inside = at < end[:, None]
        j = tl.load(order + at, mask=inside, other=0)
        x = tl.load(values + row * by_row + j, mask=inside, other=0.0)
        sums += tl.where((_counter_hash(j, key) & 1) == 1, -x, x)
    half: tl.constexpr = LANES // 2
    # The sum of two numbers has one value, in whichever order.
    sums = tl.sum(tl.reshape(sums, (BUCKETS, 2, half)), axis=1)
    if half >= 32:
        sums = tl.sum(tl.reshape(sums, (BUCKETS, 2, 16)), axis=1)
        sums = tl.sum(tl.reshape(sums, (BUCKETS, 2, 8)), axis=1)
        sums = tl.sum(tl.reshape(sums, (BUCKETS, 2, 4)), axis=1)
    sums = tl.sum(tl.reshape(sums, (BUCKETS, 2, 2)), axis=1)
    tl.store(out + row * dim + c, tl.sum(sums, axis=1), mask=c < dim)


@triton.jit
def _power_of_two(exponent):
    return ((exponent + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit(do_not_specialize=["key"])
def rademacher_kernel(
    parts,
    values,
    by_row,
    size,
    dim,
    words,
    key,
    TILE: tl.constexpr,
    TILES: tl.constexpr,
    POSITIONS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Add up TILES tiles of one row for COLUMNS columns: parts [d / (TILE TILES), b, k]."""
    word = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    part = tl.program_id(2).to(tl.int64)
    columns = tl.arange(0, COLUMNS)
    total = tl.full((COLUMNS,), 0.0, dtype=tl.float32)
    values += row * by_row
    begin = part * (TILE * TILES)
    for start in range(begin, tl.minimum(begin + TILE * TILES, size), TILE):
        whole = start + tl.arange(0, TILE)
        x = tl.load(values + whole, mask=whole < size, other=0.0)
        # Of m in [2^(e-1), 2^e), e is the exponent's bits less 126.
        bits = tl.max(x.to(tl.int32, bitcast=True) & 0x7FFFFFFF)
        exponent = tl.minimum((bits >> 23) - 126, 126)
        shrink = _power_of_two(-exponent)
        # Sums of either piece are exact: positions may meet in any order.
        first = tl.full((POSITIONS, COLUMNS), 0.0, dtype=tl.float32)
        second = tl.full((POSITIONS, COLUMNS), 0.0, dtype=tl.float32)
        for offset in range(0, TILE, POSITIONS):
            j = start + offset + tl.arange(0, POSITIONS)
            scaled = tl.load(values + j, mask=j < size, other=0.0) * shrink
            coarse = (scaled + 384.0) - 384.0
            # 384 units of 2^-15.
            fine = ((scaled - coarse) + 0.01171875) - 0.01171875
            hashed = _counter_hash(j.to(tl.int64) * words + word, key)
            minus = ((hashed[:, None] >> columns[None, :].to(tl.uint64)) & 1) == 1
            first += tl.where(minus, -coarse[:, None], coarse[:, None])
            second += tl.where(minus, -fine[:, None], fine[:, None])
        total += (tl.sum(first, axis=0) + tl.sum(second, axis=0)) * _power_of_two(exponent)
    c = word * COLUMNS + columns
    tl.store(parts + (part * tl.num_programs(1) + row) * dim + c, total, mask=c < dim)


def countsketch(values: Tensor, dim: int, key: int, lanes: int) -> Tensor:
    """Launch the kernels; see `gradian.ops.projection`."""
    rows, size = values.shape
    values = values if values.stride(1) == 1 else values.contiguous()
    buckets = torch.empty(size, dtype=torch.int32, device=values.device)
    buckets_kernel[(triton.cdiv(size, _BLOCK),)](buckets, size, dim, key, BLOCK=_BLOCK, **_LAUNCH)
    ordered, order = torch.sort(buckets, stable=True)
    ends = torch.arange(dim + 1, dtype=torch.int32, device=values.device)
    starts = torch.searchsorted(ordered, ends)
    out = values.new_empty(rows, dim)
    per_program = _MEMBERS // lanes
    countsketch_kernel[(triton.cdiv(dim, per_program), rows)](
        out, values, order, starts, values.stride(0), dim, key, LANES=lanes, BUCKETS=per_program, **_LAUNCH
    )
    return out


def rademacher(values: Tensor, dim: int, key: int, tile: int, tiles: int) -> Tensor:
    """Launch the kernel; see `gradian.ops.projection`."""
    rows, size = values.shape
    values = values if values.stride(1) == 1 else values.contiguous()
    n = triton.cdiv(size, tile * tiles)
    words = triton.cdiv(dim, _COLUMNS)
    parts = values.new_empty(n, rows, dim)
    rademacher_kernel[(words, rows, n)](
        parts,
        values,
        values.stride(0),
        size,
        dim,
        words,
        key,
        TILE=tile,
        TILES=tiles,
        POSITIONS=_POSITIONS,
        COLUMNS=_COLUMNS,
        **_LAUNCH,
    )
    out = values.new_zeros(rows, dim)
    for part in parts:
        out += part
    return out.mul_(1.0 / math.sqrt(dim))


def compile_cases() -> tuple[CompileCase, ...]:
    """Return what the launchers ask for."""
    sketches = [
        CompileCase(
            name=f"countsketch float32 {lanes} lanes",
            kernel=countsketch_kernel,
            signature={
                "out": "*fp32",
                "values": "*fp32",
                "order": "*i64",
                "starts": "*i64",
                "by_row": "i32",
                "dim": "i32",
                "key": "i64",
                "LANES": "constexpr",
                "BUCKETS": "constexpr",
            },
            constants={"LANES": lanes, "BUCKETS": _MEMBERS // lanes},
            options=_LAUNCH,
            divisible_by_16=("out", "values", "order", "starts", "by_row", "dim"),
        )
        for lanes in (8, 64)
    ]
    return (
        CompileCase(
            name="countsketch buckets",
            kernel=buckets_kernel,
            signature={"buckets": "*i32", "size": "i32", "dim": "i32", "key": "i64", "BLOCK": "constexpr"},
            constants={"BLOCK": _BLOCK},
            options=_LAUNCH,
            divisible_by_16=("buckets", "size", "dim"),
        ),
        *sketches,
        CompileCase(
            name="rademacher float32",
            kernel=rademacher_kernel,
            signature={
                "parts": "*fp32",
                "values": "*fp32",
                "by_row": "i32",
                "size": "i32",
                "dim": "i32",
                "words": "i32",
                "key": "i64",
                "TILE": "constexpr",
                "TILES": "constexpr",
                "POSITIONS": "constexpr",
                "COLUMNS": "constexpr",
            },
            constants={"TILE": 256, "TILES": 16, "POSITIONS": _POSITIONS, "COLUMNS": _COLUMNS},
            options=_LAUNCH,
            divisible_by_16=("parts", "values", "by_row", "size", "dim"),
        ),
    )
