"""Per-example gradients of many linear layers in one launch: out[b, o, i] = sum_t G[b, t, o] X[b, t, i].

In LoRA one of o and i is the rank: the thin side. A program makes one tile [BLOCK_THIN, BLOCK_WIDE] of one
example of one layer and runs over t in order, in float32, so that equal inputs give equal bits. A table of
addresses and sizes says which layer a program works for. The epilogue divides by the example's divisor, takes
the tile's largest magnitude and its sum of squares, casts, and writes where the index's row wants the tile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import triton
import triton.language as tl

from .compile_case import CompileCase
from .elementary import narrow

_FIELDS = 15  # int64 numbers that describe one layer, in the order of `_described`
_BLOCK_T = 16
_LAUNCH = {"num_warps": 4, "num_stages": 4, "enable_fp_fusion": False}

_ELEMENTS = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}


@triton.jit
def per_example_grad_kernel(
    table,
    divisor,
    largest,
    squares,
    batch,
    most_tiles,
    FIELDS: tl.constexpr,
    INPUT: tl.constexpr,
    OUTPUT: tl.constexpr,
    DIVIDED: tl.constexpr,
    SQUARES: tl.constexpr,
    THIN_ALIGNED: tl.constexpr,
    WIDE_ALIGNED: tl.constexpr,
    INTERPRETED: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_THIN: tl.constexpr,
    BLOCK_WIDE: tl.constexpr,
):
    """Make one tile; see the module's text and `_described` for the table."""
    layer = tl.program_id(1)
    entry = table + layer * FIELDS
    tiles = tl.load(entry).to(tl.int32)
    row = tl.program_id(0) // most_tiles
    tile = tl.program_id(0) % most_tiles
    # The grid is as wide as the layer with the most tiles.
    if tile >= tiles:
        return
    thin_ptr = tl.load(entry + 1).to(tl.pointer_type(INPUT))
    wide_ptr = tl.load(entry + 2).to(tl.pointer_type(INPUT))
    out_ptr = tl.load(entry + 3).to(tl.pointer_type(OUTPUT))
    thin_by_row = tl.load(entry + 4)
    thin_by_time = tl.load(entry + 5)
    wide_by_row = tl.load(entry + 6)
    wide_by_time = tl.load(entry + 7)
    out_by_row = tl.load(entry + 8)
    out_by_thin = tl.load(entry + 9)
    out_by_wide = tl.load(entry + 10)
    times = tl.load(entry + 11).to(tl.int32)
    thin_size = tl.load(entry + 12).to(tl.int32)
    wide_size = tl.load(entry + 13).to(tl.int32)
    thin_tiles = tl.load(entry + 14).to(tl.int32)
    # What the compiler sees of a kernel's arguments it cannot see of a table's: say it, or it loads by element.
    if THIN_ALIGNED:
        thin_ptr = tl.multiple_of(thin_ptr, 16)
        thin_by_row = tl.multiple_of(thin_by_row, 16)
        thin_by_time = tl.multiple_of(thin_by_time, 16)
        thin_size = tl.multiple_of(thin_size, 16)
    if WIDE_ALIGNED:
        wide_ptr = tl.multiple_of(wide_ptr, 16)
        wide_by_row = tl.multiple_of(wide_by_row, 16)
        wide_by_time = tl.multiple_of(wide_by_time, 16)
        wide_size = tl.multiple_of(wide_size, 16)

    thin = (tile % thin_tiles) * BLOCK_THIN + tl.arange(0, BLOCK_THIN)
    wide = (tile // thin_tiles) * BLOCK_WIDE + tl.arange(0, BLOCK_WIDE)
    in_thin = thin < thin_size
    in_wide = wide < wide_size
    thin_ptr += row * thin_by_row
    wide_ptr += row * wide_by_row

    total = tl.full((BLOCK_THIN, BLOCK_WIDE), 0.0, dtype=tl.float32)
    for start in range(0, times, BLOCK_T):
        time = start + tl.arange(0, BLOCK_T)
        in_time = (time < times)[:, None]
        u = tl.load(
            thin_ptr + time[:, None] * thin_by_time + thin[None, :],
            mask=in_time & in_thin[None, :],
            other=0.0,
        )
        v = tl.load(
            wide_ptr + time[:, None] * wide_by_time + wide[None, :],
            mask=in_time & in_wide[None, :],
            other=0.0,
        )
        if INTERPRETED:  # whose products of 16-bit matrices are wrong
            u = u.to(tl.float32)
            v = v.to(tl.float32)
        total = tl.dot(tl.trans(u), v, total, input_precision="ieee")

    inside = in_thin[:, None] & in_wide[None, :]
    # Outside it is zero times what may be infinite.
    total = tl.where(inside, total, 0.0)
    if DIVIDED:
        total = tl.div_rn(
            total, tl.full((BLOCK_THIN, BLOCK_WIDE), 0.0, dtype=tl.float32) + tl.load(divisor + row)
        )
    # As integers the magnitudes keep their order, and NaN is above infinity: a float maximum may drop it.
    magnitudes = total.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    figure = (layer * batch + row) * most_tiles + tile
    tl.store(largest + figure, tl.max(magnitudes).to(tl.float32, bitcast=True))
    if SQUARES:
        tl.store(squares + figure, tl.sum(total * total))

    stored = narrow(total, OUTPUT, INTERPRETED)
    out_ptr += row * out_by_row
    # One of the two strides is 1; written out, so that the compiler sees which elements are neighbours.
    if out_by_wide == 1:
        tl.store(
            out_ptr + thin[:, None] * out_by_thin + wide[None, :],
            stored,
            mask=inside,
        )
    else:
        tl.store(
            out_ptr + wide[:, None] * out_by_wide + thin[None, :],
            tl.trans(stored),
            mask=tl.trans(inside),
        )


def _tile(thin: int) -> tuple[int, int]:
    """Return (thin, wide) of the tile for a thin side of this size: 2,048 sums, which no supported GPU spills."""
    block = 16 if thin <= 16 else 32
    return block, 2048 // block


@dataclass(frozen=True)
class _Layer:
    """One layer's operands, the thin one first.

    Attributes:
        thin: [b, t, o] or [b, t, i], whichever is smaller.
        wide: the other.
        out: [b, o, i].
        thin_is_output: the thin side is o.
    """

    thin: Tensor
    wide: Tensor
    out: Tensor
    thin_is_output: bool

    def variant(self) -> tuple[Any, ...]:
        """What layers of one launch have in common."""
        tile = _tile(self.thin.shape[2])
        return self.thin.dtype, self.out.dtype, tile, _aligned(self.thin), _aligned(self.wide)


def _aligned(operand: Tensor) -> bool:
    numbers = (operand.data_ptr(), operand.stride(0), operand.stride(1), operand.shape[2])
    return all(number % 16 == 0 for number in numbers)


def _rows_contiguous(operand: Tensor) -> Tensor:
    return operand if operand.stride(2) == 1 else operand.contiguous()


def _as_layer(inputs: Tensor, output_grads: Tensor, out: Tensor) -> _Layer:
    # Autocast may hand over a float32 input of a bfloat16 output.
    dtype = torch.promote_types(inputs.dtype, output_grads.dtype)
    x, g = _rows_contiguous(inputs.to(dtype)), _rows_contiguous(output_grads.to(dtype))
    thin_is_output = g.shape[2] <= x.shape[2]
    return _Layer(g, x, out, True) if thin_is_output else _Layer(x, g, out, False)


def _described(layer: _Layer, tile: tuple[int, int]) -> list[int]:
    thin, wide, out = layer.thin, layer.wide, layer.out
    thin_tiles = triton.cdiv(thin.shape[2], tile[0])
    of_output, of_input = out.stride(1), out.stride(2)
    return [
        thin_tiles * triton.cdiv(wide.shape[2], tile[1]),
        thin.data_ptr(),
        wide.data_ptr(),
        out.data_ptr(),
        *thin.stride()[:2],
        *wide.stride()[:2],
        out.stride(0),
        *((of_output, of_input) if layer.thin_is_output else (of_input, of_output)),
        thin.shape[1],
        thin.shape[2],
        wide.shape[2],
        thin_tiles,
    ]


def _launch(layers: Sequence[_Layer], divisor: Tensor | None, squares: bool) -> tuple[Tensor, Tensor]:
    """Run layers of one variant; returns the largest magnitudes and the sums of squares, [n, b]."""
    dtype, stored, tile, thin_aligned, wide_aligned = layers[0].variant()
    device, batch = layers[0].out.device, layers[0].out.shape[0]
    table = [_described(layer, tile) for layer in layers]
    most_tiles = max(entry[0] for entry in table)
    on_host = torch.tensor(table, dtype=torch.int64)
    on_device = on_host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else on_host
    # Zeros where a layer has fewer tiles than another.
    figures = torch.zeros((2 if squares else 1), len(layers), batch, most_tiles, device=device)
    per_example_grad_kernel[(batch * most_tiles, len(layers))](
        on_device,
        figures if divisor is None else divisor,
        figures[0],
        figures[-1],
        batch,
        most_tiles,
        FIELDS=_FIELDS,
        INPUT=_ELEMENTS[dtype],
        OUTPUT=_ELEMENTS[stored],
        DIVIDED=divisor is not None,
        SQUARES=squares,
        THIN_ALIGNED=thin_aligned,
        WIDE_ALIGNED=wide_aligned,
        INTERPRETED=device.type == "cpu",
        BLOCK_T=_BLOCK_T,
        BLOCK_THIN=tile[0],
        BLOCK_WIDE=tile[1],
        **_LAUNCH,
    )
    return figures[0].amax(dim=2), figures[-1].double().sum(dim=2)


def per_example_grads(
    pairs: Sequence[tuple[Tensor, Tensor]], out: Sequence[Tensor], divisor: Tensor | None, squares: bool
) -> tuple[Tensor, Tensor | None]:
    """Launch the kernel as often as there are variants of layers; see `gradian.ops.per_example_grad`."""
    layers = [_as_layer(x, g, target) for (x, g), target in zip(pairs, out, strict=True)]
    variants: dict[tuple[Any, ...], list[int]] = {}
    for number, layer in enumerate(layers):
        variants.setdefault(layer.variant(), []).append(number)
    largest: list[Tensor] = [out[0]] * len(layers)
    sums = list(largest)
    for numbers in variants.values():
        tops, totals = _launch([layers[number] for number in numbers], divisor, squares)
        for row, number in enumerate(numbers):
            largest[number], sums[number] = tops[row], totals[row]
    return torch.stack(largest), torch.stack(sums) if squares else None


def compile_cases() -> tuple[CompileCase, ...]:
    """Return what the launcher asks for: every dtype, storage and tile; the rarer options once each."""
    variants = [
        (dtype, stored, rank, False, False, True)
        for dtype in _ELEMENTS
        for stored in (torch.float32, torch.float16)
        for rank in (16, 64)
    ]
    variants += [(dtype, torch.float32, 16, True, True, False) for dtype in _ELEMENTS]
    return tuple(_compile_case(*variant) for variant in variants)


def _compile_case(
    dtype: torch.dtype, stored: torch.dtype, rank: int, divided: bool, squares: bool, aligned: bool
) -> CompileCase:
    tile = _tile(rank)
    constants = {
        "FIELDS": _FIELDS,
        "INPUT": _ELEMENTS[dtype],
        "OUTPUT": _ELEMENTS[stored],
        "DIVIDED": divided,
        "SQUARES": squares,
        "THIN_ALIGNED": aligned,
        "WIDE_ALIGNED": aligned,
        "INTERPRETED": False,
        "BLOCK_T": _BLOCK_T,
        "BLOCK_THIN": tile[0],
        "BLOCK_WIDE": tile[1],
    }
    arguments = {
        "table": "*i64",
        "divisor": "*fp32",
        "largest": "*fp32",
        "squares": "*fp32",
        "batch": "i32",
        "most_tiles": "i32",
    }
    names = f"{str(dtype).removeprefix('torch.')} to {str(stored).removeprefix('torch.')} rank {rank}"
    options = f"{' divided' * divided}{' squares' * squares}{'' if aligned else ' unaligned'}"
    return CompileCase(
        name=f"per_example_grad {names}{options}",
        kernel=per_example_grad_kernel,
        signature={**arguments, **dict.fromkeys(constants, "constexpr")},
        constants=constants,
        options=_LAUNCH,
        divisible_by_16=("table", "divisor", "largest", "squares"),
    )
