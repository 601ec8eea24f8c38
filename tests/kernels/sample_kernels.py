"""Kernels that show the faults which the compile test is there to find; never launched."""

import triton
import triton.language as tl
from gradian.kernels.compile_case import CompileCase


@triton.jit
def doubled(x):
    return 2 * x


@triton.jit
def twice(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n)
    tl.store(y_ptr + at, doubled(x), mask=at < n)


@triton.jit
def product(a_ptr, b_ptr, c_ptr, k, SIDE: tl.constexpr, STEP: tl.constexpr):
    row = tl.arange(0, SIDE)
    total = tl.zeros((SIDE, SIDE), tl.float32)
    for start in range(0, k, STEP):
        at = start + tl.arange(0, STEP)
        a = tl.load(a_ptr + row[:, None] * k + at[None, :])
        b = tl.load(b_ptr + at[:, None] * SIDE + row[None, :])
        total = tl.dot(a, b, total)
    tl.store(c_ptr + row[:, None] * SIDE + row[None, :], total)


def _product(name: str, step: int, **options: int) -> CompileCase:
    signature = {"a_ptr": "*fp16", "b_ptr": "*fp16", "c_ptr": "*fp32", "k": "i32"}
    return CompileCase(
        name,
        product,
        {**signature, "SIDE": "constexpr", "STEP": "constexpr"},
        {"SIDE": 64, "STEP": step},
        {"num_warps": 4, "enable_fp_fusion": False, **options},
        divisible_by_16=tuple(signature),
    )


def compile_cases() -> tuple[CompileCase, ...]:
    return (
        CompileCase(
            "twice",
            twice,
            {"x_ptr": "*fp32", "y_ptr": "*fp32", "n": "i32", "BLOCK": "constexpr"},
            {"BLOCK": 1024},
            {"num_warps": 4, "enable_fp_fusion": False},
            divisible_by_16=("x_ptr", "y_ptr"),
        ),
        _product("spilling", step=32, maxnreg=32),
        _product("crowded", step=128, num_stages=7),
        _product("roomy", step=16, num_stages=1),
    )
