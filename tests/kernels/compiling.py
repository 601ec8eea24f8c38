"""Compiles kernels for GPUs that are not there, and reads off what they take.

    python -W error -m tests.kernels.compiling [--module NAME ...] [--target NAME ...]

prints JSON: per target, module and case the figures of the machine code. It is a process of its own because
Triton decides when it is imported whether it interprets or compiles, and the suite has it interpret.

NVIDIA's figures are what `ptxas -v` reports to Triton: registers a thread, bytes of shared memory a program,
bytes of spill stores and loads. AMD's are the metadata of the code object: vector registers a lane, and the
number of registers that were spilled.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import inspect
import io
import multiprocessing
import os
import re
import tempfile
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

from tests.kernels.table import REQUIRED, TARGETS, Figures, Table, Target, to_json


def kernel_modules() -> tuple[str, ...]:
    """Return the names of the modules under `gradian.kernels`."""
    package = import_module("gradian.kernels")
    return tuple(f"{package.__name__}.{module.name}" for module in iter_modules(package.__path__))


def cases_of(module: ModuleType) -> tuple[Any, ...]:
    """Return what a module lists to be compiled; nothing where it holds parts of other modules' kernels."""
    listed: tuple[Any, ...] = module.compile_cases() if hasattr(module, "compile_cases") else ()
    return listed


def _jitted(names: Mapping[str, Any]) -> dict[str, Any]:
    from triton.runtime.jit import KernelInterface

    return {name: value for name, value in names.items() if isinstance(value, KernelInterface)}


def _called_by(kernel: Any) -> list[Any]:
    tree = ast.parse(textwrap.dedent(inspect.getsource(kernel.fn)))
    named = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return [value for name, value in _jitted(kernel.fn.__globals__).items() if name in named]


def uncompiled(modules: Sequence[ModuleType]) -> list[str]:
    """Return the jitted functions that no case compiles, neither itself nor as a part of another."""
    reached: set[int] = set()
    waiting = [case.kernel for module in modules for case in cases_of(module)]
    while waiting:
        kernel = waiting.pop()
        if id(kernel) not in reached:
            reached.add(id(kernel))
            waiting += _called_by(kernel)
    return [
        f"{module.__name__}.{name}"
        for module in modules
        for name, value in _jitted(vars(module)).items()
        if id(value) not in reached
    ]


def _attributes(case: Any) -> dict[tuple[int, ...], list[list[Any]]]:
    position = {name: i for i, name in enumerate(case.kernel.arg_names)}
    return {(position[name],): [["tt.divisibility", 16]] for name in case.divisible_by_16}


def _only_number(pattern: str, text: str) -> int:
    (found,) = re.findall(pattern, text, flags=re.MULTILINE)
    return int(found)


def compile_case(case: Any, target: Target) -> Figures:
    """Compile one case to machine code, bypassing Triton's cache, and read its figures."""
    import triton
    from triton import knobs
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    source = ASTSource(case.kernel, dict(case.signature), dict(case.constants), _attributes(case))
    log = io.StringIO()
    with knobs.nvidia.scope(), knobs.compilation.scope(), contextlib.redirect_stdout(log):
        # A cached kernel would come without ptxas's report.
        knobs.compilation.always_compile = True
        knobs.nvidia.dump_ptxas_log = True
        compiled = triton.compile(
            source, target=GPUTarget(target.backend, target.arch, target.warp), options=dict(case.options)
        )
    if target.backend == "cuda":
        text = log.getvalue()
        stores = _only_number(r"(\d+) bytes spill stores", text)
        loads = _only_number(r"(\d+) bytes spill loads", text)
        return Figures(_only_number(r"Used (\d+) registers", text), compiled.metadata.shared, stores + loads)
    text = compiled.asm["amdgcn"]
    spills = sum(_only_number(rf"^\s*\.{kind}_spill_count:\s*(\d+)", text) for kind in ("vgpr", "sgpr"))
    return Figures(_only_number(r"^\s*\.vgpr_count:\s*(\d+)", text), compiled.metadata.shared, spills)


def _compile_by_name(module: str, index: int, target: str) -> Figures:
    return compile_case(cases_of(import_module(module))[index], TARGETS[target])


def compile_all(modules: Iterable[str], targets: Sequence[str]) -> Table:
    """Compile every case of the modules for every target, on all cores.

    Raises:
        ValueError: a kernel is in no case, two cases have one name, or a case leaves open whether
            products and sums are fused.
    """
    imported = [import_module(name) for name in modules]
    missing = uncompiled(imported)
    if missing:
        raise ValueError(f"no compile_cases() has a case of {', '.join(missing)}")
    jobs: list[tuple[str, str, int, str]] = []
    for module in imported:
        cases = [case.name for case in cases_of(module)]
        if len(set(cases)) < len(cases):
            raise ValueError(f"compile_cases() of {module.__name__} gives two cases one name: {cases}")
        # What a launcher leaves open, the next Triton may decide otherwise.
        silent = [case.name for case in cases_of(module) if "enable_fp_fusion" not in case.options]
        if silent:
            raise ValueError(
                f"no enable_fp_fusion in the options of {', '.join(silent)} of {module.__name__}"
            )
        jobs += [(module.__name__, case, i, target) for i, case in enumerate(cases) for target in targets]
    table: dict[str, dict[str, dict[str, Figures]]] = {}
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(os.cpu_count() or 1, 8), mp_context=spawn) as pool:
        futures = [pool.submit(_compile_by_name, name, i, target) for name, _, i, target in jobs]
        for (name, case, _, target), future in zip(jobs, futures, strict=True):
            table.setdefault(name, {}).setdefault(case, {})[target] = future.result()
    return table


def main() -> None:
    """Compile and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--module", action="append", help="module with compile_cases() (default: Gradian's)")
    parser.add_argument("--target", action="append", choices=list(TARGETS), help="(default: those required)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as cache:
        os.environ["TRITON_CACHE_DIR"] = cache
        table = compile_all(options.module or kernel_modules(), options.target or REQUIRED)
    print(to_json(table), end="")


if __name__ == "__main__":
    main()
