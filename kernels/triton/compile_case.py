"""What it takes to compile a kernel for a GPU that is not there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class CompileCase:
    """One specialisation of a kernel, as its launcher would ask for it.

    Each kernel module lists its own in `compile_cases() -> tuple[CompileCase, ...]`: every kernel, for every
    dtype it takes, with the tile sizes and launch options that the launcher chooses.

    Attributes:
        name: kernel, dtype and what else tells the case from the others, such as `cross_entropy_forward bfloat16`.
        kernel: the jitted function.
        signature: per argument its Triton type, such as `*bf16`, `*fp32`, `i32`, `constexpr`.
        constants: values of the constexpr arguments.
        options: launch options: `num_warps`, `num_stages`, `enable_fp_fusion`.
        divisible_by_16: arguments whose value or address is known to be a multiple of 16, as the launcher's
            tensors and sizes are; the compiler vectorises by it.
    """

    name: str
    kernel: Any
    signature: Mapping[str, str]
    constants: Mapping[str, Any]
    options: Mapping[str, Any]
    divisible_by_16: tuple[str, ...] = ()
