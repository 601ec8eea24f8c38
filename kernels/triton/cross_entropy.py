"""Cross entropy of logits [N, V] in one pass over each row, and its gradient in their place.

    loss = (m - x_t) + log1p(sum_{v != argmax} exp(x_v - m))
    grad_v = (exp((x_v - m) - log_sum) - [v = t]) * upstream

A program of the forward kernel owns a row and keeps (m, rest) online (Milakov and Gimelshein, 2018), leaving
the maximum's own term out. m and the log-sum are stored apart. A program of the backward kernel owns a piece
of a row, reads it once and writes the gradient over it. Everything between load and store is float32.
"""

from itertools import product

import torch

import triton
import triton.language as tl

from .compile_case import CompileCase
from .elementary import exp, log1p, merge, narrow, peak_and_rest

TYPES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}


@triton.jit
def cross_entropy_forward(
    logits, targets, loss, peaks, log_sums, row_stride, vocabulary, BLOCK: tl.constexpr
):
    """One row: loss, maximum and log-sum. A target outside [0, V) gives NaN instead of a foreign logit."""
    row = tl.program_id(0).to(tl.int64)
    start_of_row = logits + row * row_stride
    peak = -float("inf")
    rest = -1.0
    for start in range(0, vocabulary, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        x = tl.load(start_of_row + columns, mask=columns < vocabulary, other=-float("inf")).to(tl.float32)
        block_peak, block_rest = peak_and_rest(x, 0)
        peak, rest = merge(peak, rest, block_peak, block_rest)
    target = tl.load(targets + row)
    known = (target >= 0) & (target < vocabulary)
    x_t = tl.load(start_of_row + target, mask=known, other=float("nan")).to(tl.float32)
    log_sum = log1p(rest)
    tl.store(loss + row, (peak - x_t) + log_sum)
    tl.store(peaks + row, peak)
    tl.store(log_sums + row, log_sum)


@triton.jit
def cross_entropy_backward(
    logits,
    targets,
    peaks,
    log_sums,
    upstream,
    row_stride,
    vocabulary,
    BLOCK: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """One piece of one row: its logits become their gradient."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    at = logits + row * row_stride + columns
    inside = columns < vocabulary
    x = tl.load(at, mask=inside, other=-float("inf")).to(tl.float32)
    scale = tl.load(upstream + row)
    grad = exp((x - tl.load(peaks + row)) - tl.load(log_sums + row)) * scale
    grad -= tl.where(columns == tl.load(targets + row), scale, 0.0)
    tl.store(at, narrow(grad, logits.dtype.element_ty, INTERPRETED), mask=inside)


def tile(vocabulary: int) -> tuple[int, int]:
    """Return the columns of one load and the warps that share them."""
    block = min(4096, max(128, triton.next_power_of_2(vocabulary)))
    return block, max(1, min(8, block // 512))


def options(vocabulary: int) -> dict[str, object]:
    """Return the launch options."""
    return {"num_warps": tile(vocabulary)[1], "num_stages": 2, "enable_fp_fusion": False}


def forward(logits: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return loss, row maximum and log-sum, each float32 [N].

    Args:
        logits: [N, V] with contiguous rows at any distance.
        targets: int64 [N], contiguous.
    """
    rows, vocabulary = logits.shape
    loss, peaks, log_sums = torch.empty(3, rows, dtype=torch.float32, device=logits.device)
    if rows:
        with torch.cuda.device_of(logits):
            cross_entropy_forward[(rows,)](
                logits,
                targets,
                loss,
                peaks,
                log_sums,
                logits.stride(0),
                vocabulary,
                BLOCK=tile(vocabulary)[0],
                **options(vocabulary),
            )
    return loss, peaks, log_sums


def backward(
    logits: torch.Tensor,
    targets: torch.Tensor,
    peaks: torch.Tensor,
    log_sums: torch.Tensor,
    upstream: torch.Tensor,
) -> None:
    """Overwrite the logits with their gradient.

    Args:
        logits: as `forward` saw them.
        targets: as `forward` saw them.
        peaks: as `forward` returned them.
        log_sums: as `forward` returned them.
        upstream: float32 [N], contiguous.
    """
    rows, vocabulary = logits.shape
    if not rows:
        return
    block = tile(vocabulary)[0]
    with torch.cuda.device_of(logits):
        cross_entropy_backward[(rows, triton.cdiv(vocabulary, block))](
            logits,
            targets,
            peaks,
            log_sums,
            upstream,
            logits.stride(0),
            vocabulary,
            BLOCK=block,
            INTERPRETED=logits.device.type == "cpu",
            **options(vocabulary),
        )


def compile_cases() -> tuple[CompileCase, ...]:
    """Both kernels for every dtype, with rows that start at multiples of 16 and with rows that start anywhere."""
    cases = []
    for kernel, results, flags in (
        (cross_entropy_forward, ("loss", "peaks", "log_sums"), {}),
        (cross_entropy_backward, ("peaks", "log_sums", "upstream"), {"INTERPRETED": False}),
    ):
        for dtype, vocabulary in product(TYPES, (131072, 50257)):
            constants = {"BLOCK": tile(vocabulary)[0], **flags}
            cases.append(
                CompileCase(
                    name=f"{kernel.__name__} {TYPES[dtype]} vocabulary={vocabulary}",
                    kernel=kernel,
                    signature={
                        "logits": f"*{TYPES[dtype]}",
                        "targets": "*i64",
                        **dict.fromkeys(results, "*fp32"),
                        "row_stride": "i32",
                        "vocabulary": "i32",
                        **dict.fromkeys(constants, "constexpr"),
                    },
                    constants=constants,
                    options=options(vocabulary),
                    divisible_by_16=(
                        *("logits", "targets", *results),
                        *(() if vocabulary % 16 else ("row_stride", "vocabulary")),
                    ),
                )
            )
    return tuple(cases)
