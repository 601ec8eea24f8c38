"""Cross entropy straight from hidden states and the head's weight: logits exist only as tiles in registers.

With z = scale (h W^T + bias), x = softcap tanh(z / softcap) and the loss of `gradian/ops/cross_entropy.py`:

    grad_h = upstream scale sum_v g_v W_v,   g_v = (softmax(x)_v - [v = t]) (1 - (x_v / softcap)^2)

- `..._forward`: a program owns rows and a part of the vocabulary; it makes logits tile by tile and keeps
  (maximum, rest, target's logit) of each row. `..._combine` merges the parts in their order.
- `..._gradient`: makes the logits again, for some of the vocabulary at a time, and writes g in the dtype of W:
  one buffer of bounded size, `GRADIENT_ELEMENTS`.
- `..._accumulate`: a program owns a tile of the result and adds g W to it in float32.

No atomics: each sum has one owner and one order, so the same inputs give the same bits. Products of 16-bit
operands are summed in float32 by tensor cores, those of float32 operands without rounding them first.
"""

from dataclasses import dataclass

import torch

import triton
import triton.language as tl

from .compile_case import CompileCase
from .elementary import exp, log1p, merge, narrow, peak_and_rest, tanh

TYPES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
# Programs that the forward pass aims at: a few for each multiprocessor of a large GPU.
PROGRAMS = 512
# Most elements of the buffer of g, unless one column of tiles holds more.
GRADIENT_ELEMENTS = 1 << 26
# g is at most 1, but of a large vocabulary most of it is below what float16 holds: stored times this.
GAINS = {torch.float32: 1.0, torch.bfloat16: 1.0, torch.float16: float(1 << 14)}


@triton.jit
def logit_tile(
    hidden,
    weight,
    bias,
    rows,
    columns,
    width,
    vocabulary,
    hidden_stride,
    weight_stride,
    scale,
    softcap,
    HAS_BIAS: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    EVEN: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    INNER: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """Return logits [ROWS, COLUMNS], float32; minus infinity beyond the vocabulary. `rows` must exist."""
    known = tl.where(columns < vocabulary, columns, 0)
    h_at = hidden + rows.to(tl.int64)[:, None] * hidden_stride
    w_at = weight + known.to(tl.int64)[:, None] * weight_stride
    x = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for start in range(0, width, INNER):
        inner = start + tl.arange(0, INNER)[None, :]
        if EVEN:
            h = tl.load(h_at + inner)
            w = tl.load(w_at + inner)
        else:
            h = tl.load(h_at + inner, mask=inner < width, other=0.0)
            w = tl.load(w_at + inner, mask=inner < width, other=0.0)
        if INTERPRETED:
            # The interpreter multiplies bfloat16 as if its bits were integers.
            h = h.to(tl.float32)
            w = w.to(tl.float32)
        x = tl.dot(h, tl.trans(w), x, input_precision="ieee")
    if HAS_BIAS:
        x += tl.load(bias + known).to(tl.float32)[None, :]
    x *= scale
    if HAS_SOFTCAP:
        x = softcap * tanh(x / softcap)
    return tl.where((columns < vocabulary)[None, :], x, -float("inf"))


@triton.jit
def linear_cross_entropy_forward(
    hidden,
    weight,
    bias,
    targets,
    peaks,
    rests,
    target_logits,
    n_rows,
    width,
    vocabulary,
    hidden_stride,
    weight_stride,
    scale,
    softcap,
    part_columns,
    HAS_BIAS: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    EVEN: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    INNER: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """Maximum and rest [parts, N] of one part of the vocabulary, and the target's logit [N] if it is there."""
    part = tl.program_id(1)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = rows < n_rows
    rows = tl.where(inside, rows, 0)
    target = tl.load(targets + rows)
    peak = tl.full((ROWS,), -float("inf"), dtype=tl.float32)
    rest = tl.full((ROWS,), -1.0, dtype=tl.float32)
    x_t = tl.zeros((ROWS,), dtype=tl.float32)
    first = part * part_columns
    end = tl.minimum(first + part_columns, vocabulary)
    for start in range(first, end, COLUMNS):
        columns = start + tl.arange(0, COLUMNS)
        x = logit_tile(
            hidden,
            weight,
            bias,
            rows,
            columns,
            width,
            vocabulary,
            hidden_stride,
            weight_stride,
            scale,
            softcap,
            HAS_BIAS,
            HAS_SOFTCAP,
            EVEN,
            ROWS,
            COLUMNS,
            INNER,
            INTERPRETED,
        )
        tile_peak, tile_rest = peak_and_rest(x, 1)
        peak, rest = merge(peak, rest, tile_peak, tile_rest)
        x_t += tl.sum(tl.where(columns[None, :] == target[:, None], x, 0.0), axis=1)
    at = part.to(tl.int64) * n_rows + rows
    tl.store(peaks + at, peak, mask=inside)
    tl.store(rests + at, rest, mask=inside)
    tl.store(target_logits + rows, x_t, mask=inside & (target >= first) & (target < end))


@triton.jit
def linear_cross_entropy_combine(
    peaks, rests, target_logits, loss, peak_out, log_sums, n_rows, parts, ROWS: tl.constexpr
):
    """Merge the parts of the vocabulary, first to last: loss, maximum and log-sum [N]."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = rows < n_rows
    peak = tl.full((ROWS,), -float("inf"), dtype=tl.float32)
    rest = tl.full((ROWS,), -1.0, dtype=tl.float32)
    for part in range(0, parts):
        at = tl.cast(part, tl.int64) * n_rows + rows
        part_peak = tl.load(peaks + at, mask=inside, other=0.0)
        part_rest = tl.load(rests + at, mask=inside, other=0.0)
        peak, rest = merge(peak, rest, part_peak, part_rest)
    log_sum = log1p(rest)
    x_t = tl.load(target_logits + rows, mask=inside, other=0.0)
    tl.store(loss + rows, (peak - x_t) + log_sum, mask=inside)
    tl.store(peak_out + rows, peak, mask=inside)
    tl.store(log_sums + rows, log_sum, mask=inside)


@triton.jit
def linear_cross_entropy_gradient(
    hidden,
    weight,
    bias,
    targets,
    peaks,
    log_sums,
    grad_logits,
    n_rows,
    width,
    vocabulary,
    hidden_stride,
    weight_stride,
    scale,
    softcap,
    first_column,
    chunk,
    gain,
    HAS_BIAS: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    EVEN: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    INNER: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """One tile of g, times `gain`, into [N, chunk]; zero beyond the vocabulary."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = rows < n_rows
    rows = tl.where(inside, rows, 0)
    place = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    columns = first_column + place
    x = logit_tile(
        hidden,
        weight,
        bias,
        rows,
        columns,
        width,
        vocabulary,
        hidden_stride,
        weight_stride,
        scale,
        softcap,
        HAS_BIAS,
        HAS_SOFTCAP,
        EVEN,
        ROWS,
        COLUMNS,
        INNER,
        INTERPRETED,
    )
    g = exp((x - tl.load(peaks + rows)[:, None]) - tl.load(log_sums + rows)[:, None])
    g = tl.where(columns[None, :] == tl.load(targets + rows)[:, None], g - 1.0, g)
    if HAS_SOFTCAP:
        ratio = x / softcap
        g *= tl.where((columns < vocabulary)[None, :], 1.0 - ratio * ratio, 0.0)
    at = grad_logits + rows.to(tl.int64)[:, None] * chunk + place[None, :]
    tl.store(at, narrow(g * gain, grad_logits.dtype.element_ty, INTERPRETED), mask=inside[:, None])


@triton.jit
def linear_cross_entropy_accumulate(
    grad_logits,
    weight,
    total,
    n_rows,
    width,
    vocabulary,
    weight_stride,
    first_column,
    chunk,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    INNER: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """Add g [N, chunk] times its rows of the weight to one tile of total [N, width], float32."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (rows < n_rows)[:, None] & (columns < width)[None, :]
    rows = tl.where(rows < n_rows, rows, 0).to(tl.int64)[:, None]
    columns = columns[None, :]
    result = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for start in range(0, chunk, INNER):
        inner = start + tl.arange(0, INNER)
        # Beyond the vocabulary g is zero, whatever it is multiplied with.
        known = tl.minimum(first_column + inner, vocabulary - 1).to(tl.int64)
        g = tl.load(grad_logits + rows * chunk + inner[None, :])
        # Masked, not clamped as rows are: only whole runs of columns load as vectors.
        w = tl.load(weight + known[:, None] * weight_stride + columns, mask=columns < width, other=0.0)
        if INTERPRETED:
            g = g.to(tl.float32)
            w = w.to(tl.float32)
        result = tl.dot(g, w, result, input_precision="ieee")
    # Not the sum's start: its addresses would occupy registers all along.
    at = total + rows * width + columns
    tl.store(at, tl.load(at, mask=inside, other=0.0) + result, mask=inside)


@dataclass(frozen=True)
class Tiles:
    """How a product is cut.

    Attributes:
        rows: of a program's tile.
        columns: of a program's tile.
        inner: length of one step of the sum.
        warps: of a program.
        stages: loads in flight.
    """

    rows: int
    columns: int
    inner: int
    warps: int
    stages: int

    @property
    def constants(self) -> dict[str, int]:
        """Return them as the kernels' constants."""
        return {"ROWS": self.rows, "COLUMNS": self.columns, "INNER": self.inner}

    @property
    def options(self) -> dict[str, object]:
        """Return the launch options."""
        return {"num_warps": self.warps, "num_stages": self.stages, "enable_fp_fusion": True}


def tiles(dtype: torch.dtype, n_rows: int, width: int) -> Tiles:
    """Return the tiles for operands of `dtype`; few rows get a low tile.

    Rows of a width that is no multiple of 16 load element by element, which takes registers.
    """
    if dtype == torch.float32:
        return Tiles(rows=32, columns=32, inner=32, warps=4, stages=2)
    if width % 16:
        return Tiles(rows=64, columns=64, inner=32, warps=4, stages=2)
    if n_rows <= 64:
        return Tiles(rows=64, columns=128, inner=32, warps=4, stages=3)
    return Tiles(rows=128, columns=128, inner=32, warps=8, stages=3)


COMBINE_ROWS = 128
COMBINE_OPTIONS: dict[str, object] = {"num_warps": 4, "num_stages": 2, "enable_fp_fusion": True}


def _constants(
    hidden: torch.Tensor, bias: torch.Tensor | None, softcap: float | None, cut: Tiles
) -> dict[str, object]:
    return {
        "HAS_BIAS": bias is not None,
        "HAS_SOFTCAP": softcap is not None,
        "EVEN": hidden.shape[1] % cut.inner == 0,
        **cut.constants,
        "INTERPRETED": hidden.device.type == "cpu",
    }


def _sizes(
    hidden: torch.Tensor, weight: torch.Tensor, scale: float, softcap: float | None
) -> tuple[int | float, ...]:
    strides = (hidden.stride(0), weight.stride(0))
    return (
        *hidden.shape,
        weight.shape[0],
        *strides,
        float(scale),
        1.0 if softcap is None else float(softcap),
    )


def forward(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    targets: torch.Tensor,
    scale: float,
    softcap: float | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return loss, row maximum and log-sum, each float32 [N]; a target outside [0, V) gives NaN.

    Args:
        hidden: [N, H], rows of adjacent elements.
        weight: [V, H] in the same dtype, rows of adjacent elements.
        bias: contiguous [V] in the same dtype, or None.
        targets: int64 [N], contiguous.
        scale: factor of the logits.
        softcap: what the scaled logits are then capped to, or None.
    """
    n_rows, vocabulary = hidden.shape[0], weight.shape[0]
    loss, peak, log_sum = torch.empty(3, n_rows, dtype=torch.float32, device=hidden.device)
    if not n_rows:
        return loss, peak, log_sum
    cut = tiles(hidden.dtype, n_rows, hidden.shape[1])
    row_blocks = triton.cdiv(n_rows, cut.rows)
    tiles_of_part = triton.cdiv(triton.cdiv(vocabulary, cut.columns), max(1, PROGRAMS // row_blocks))
    part_columns = tiles_of_part * cut.columns
    parts = triton.cdiv(vocabulary, part_columns)
    peaks, rests = torch.empty(2, parts, n_rows, dtype=torch.float32, device=hidden.device)
    target_logits = torch.full((n_rows,), float("nan"), dtype=torch.float32, device=hidden.device)
    with torch.cuda.device_of(hidden):
        linear_cross_entropy_forward[(row_blocks, parts)](
            hidden,
            weight,
            weight if bias is None else bias,
            targets,
            peaks,
            rests,
            target_logits,
            *_sizes(hidden, weight, scale, softcap),
            part_columns,
            **_constants(hidden, bias, softcap, cut),
            **cut.options,
        )
        linear_cross_entropy_combine[(triton.cdiv(n_rows, COMBINE_ROWS),)](
            peaks,
            rests,
            target_logits,
            loss,
            peak,
            log_sum,
            n_rows,
            parts,
            ROWS=COMBINE_ROWS,
            **COMBINE_OPTIONS,
        )
    return loss, peak, log_sum


def backward(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    targets: torch.Tensor,
    scale: float,
    softcap: float | None,
    peak: torch.Tensor,
    log_sum: torch.Tensor,
) -> torch.Tensor:
    """Return sum_v g_v W_v, float32 [N, H].

    Args:
        hidden: this and all to `softcap` as `forward` saw them.
        weight: see there.
        bias: see there.
        targets: see there.
        scale: see there.
        softcap: see there.
        peak: as `forward` returned it.
        log_sum: as `forward` returned it.
    """
    (n_rows, width), vocabulary = hidden.shape, weight.shape[0]
    total = torch.zeros(n_rows, width, dtype=torch.float32, device=hidden.device)
    if not n_rows:
        return total
    cut = tiles(hidden.dtype, n_rows, hidden.shape[1])
    row_blocks = triton.cdiv(n_rows, cut.rows)
    tiles_at_once = min(
        triton.cdiv(vocabulary, cut.columns), max(1, GRADIENT_ELEMENTS // (n_rows * cut.columns))
    )
    chunk = tiles_at_once * cut.columns
    gain = GAINS[hidden.dtype]
    grad_logits = torch.empty(n_rows, chunk, dtype=hidden.dtype, device=hidden.device)
    with torch.cuda.device_of(hidden):
        for first_column in range(0, vocabulary, chunk):
            linear_cross_entropy_gradient[(row_blocks, tiles_at_once)](
                hidden,
                weight,
                weight if bias is None else bias,
                targets,
                peak,
                log_sum,
                grad_logits,
                *_sizes(hidden, weight, scale, softcap),
                first_column,
                chunk,
                gain,
                **_constants(hidden, bias, softcap, cut),
                **cut.options,
            )
            linear_cross_entropy_accumulate[(row_blocks, triton.cdiv(width, cut.columns))](
                grad_logits,
                weight,
                total,
                n_rows,
                width,
                vocabulary,
                weight.stride(0),
                first_column,
                chunk,
                **cut.constants,
                INTERPRETED=hidden.device.type == "cpu",
                **cut.options,
            )
    return total.div_(gain)


# Rows, width, and whether with bias and softcap: many rows, of a width that no tile divides and of one that tiles
# do, and few rows.
_SHAPES = ((2048, 1601, True), (2048, 2304, True), (48, 4096, False))
_POINTERS = {
    linear_cross_entropy_forward: {"peaks": "*fp32", "rests": "*fp32", "target_logits": "*fp32"},
    linear_cross_entropy_gradient: {"peaks": "*fp32", "log_sums": "*fp32", "grad_logits": ""},
}


def _case(kernel: object, dtype: torch.dtype, n_rows: int, width: int, capped: bool) -> CompileCase:
    cut, name = tiles(dtype, n_rows, width), TYPES[dtype]
    even = width % 16 == 0
    sizes = dict.fromkeys(("n_rows", "width", "vocabulary", "hidden_stride", "weight_stride"), "i32")
    operands = {"hidden": f"*{name}", "weight": f"*{name}", "bias": f"*{name}", "targets": "*i64"}
    chunk = {"first_column": "i32", "chunk": "i32"}
    if kernel is linear_cross_entropy_accumulate:
        capped = False
        pointers = {"grad_logits": f"*{name}", "weight": f"*{name}", "total": "*fp32"}
        scalars = {**{key: sizes[key] for key in ("n_rows", "width", "vocabulary", "weight_stride")}, **chunk}
        constants = {**cut.constants, "INTERPRETED": False}
    else:
        own = _POINTERS[kernel]
        pointers = {**operands, **{key: kind or f"*{name}" for key, kind in own.items()}}
        last = (
            {"part_columns": "i32"} if kernel is linear_cross_entropy_forward else {**chunk, "gain": "fp32"}
        )
        scalars = {**sizes, "scale": "fp32", "softcap": "fp32", **last}
        flags = {"HAS_BIAS": capped, "HAS_SOFTCAP": capped, "EVEN": width % cut.inner == 0}
        constants = {**flags, **cut.constants, "INTERPRETED": False}
    multiples = {"first_column", "chunk", "part_columns", *(sizes if even else ("n_rows",))}
    return CompileCase(
        name=f"{kernel.__name__} {name} rows={n_rows} width={width}{' bias softcap' if capped else ''}",
        kernel=kernel,
        signature={**pointers, **scalars, **dict.fromkeys(constants, "constexpr")},
        constants=constants,
        options=cut.options,
        divisible_by_16=(*pointers, *(key for key in scalars if key in multiples)),
    )


def compile_cases() -> tuple[CompileCase, ...]:
    """Every kernel, dtype and tile, with the most and the least that a head may ask for."""
    cases = [
        _case(kernel, dtype, n_rows, width, capped)
        for kernel in (
            linear_cross_entropy_forward,
            linear_cross_entropy_gradient,
            linear_cross_entropy_accumulate,
        )
        for dtype in TYPES
        for n_rows, width, capped in _SHAPES
        # float32 has one tile for any number of rows.
        if not (dtype == torch.float32 and n_rows <= 64)
    ]
    names = ("peaks", "rests", "target_logits", "loss", "peak_out", "log_sums")
    combine = CompileCase(
        name="linear_cross_entropy_combine",
        kernel=linear_cross_entropy_combine,
        signature={**dict.fromkeys(names, "*fp32"), "n_rows": "i32", "parts": "i32", "ROWS": "constexpr"},
        constants={"ROWS": COMBINE_ROWS},
        options=COMBINE_OPTIONS,
        divisible_by_16=names,
    )
    return (*cases, combine)
