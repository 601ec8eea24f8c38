"""Compiles kernels for GPUs that are not there, and reads off what they take.

    python -W error -m tests.kernels.compiling [--module NAME ...] [--target NAME ...] [--record FILE]

prints JSON: per module, case and target the figures of the machine code. It is a process of its own because
Triton decides when it is imported whether it interprets or compiles, and the suite has it interpret.

The first case of each kernel is always compiled. Another one keeps the figures of the record while its fingerprint
stays: the source of the kernel and of what it calls, signature, constants, options and Triton's version, which
brings its own assemblers. A minute of compiling would tell the same again.

NVIDIA's figures are what `ptxas -v` reports to Triton: registers a thread, bytes of shared memory a program,
bytes of spill stores and loads. AMD's are the metadata of the code object: vector registers a lane, and the
number of registers that were spilled.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import hashlib
import inspect
import io
import multiprocessing
import os
import re
import tempfile
import textwrap
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

from tests.kernels.table import REQUIRED, TARGETS, Compiled, Figures, Table, Target, from_json, to_json


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


def _source(case: Any) -> Any:
    from triton.compiler import ASTSource

    return ASTSource(case.kernel, dict(case.signature), dict(case.constants), _attributes(case))


def fingerprint(case: Any) -> str:
    """Return a hash of everything that the machine code depends on."""
    import triton

    text = f"{triton.__version__} {sorted(case.options.items())} {_source(case).hash()}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def compile_case(case: Any, target: Target) -> Figures:
    """Compile one case to machine code, bypassing Triton's cache, and read its figures."""
    import triton
    from triton import knobs
    from triton.backends.compiler import GPUTarget

    log = io.StringIO()
    with knobs.nvidia.scope(), knobs.compilation.scope(), contextlib.redirect_stdout(log):
        # A cached kernel would come without ptxas's report.
        knobs.compilation.always_compile = True
        knobs.nvidia.dump_ptxas_log = True
        compiled = triton.compile(
            _source(case),
            target=GPUTarget(target.backend, target.arch, target.warp),
            options=dict(case.options),
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


def check(modules: Sequence[ModuleType]) -> None:
    """Hold what the modules list to its rules.

    Raises:
        ValueError: a kernel is in no case, two cases have one name, or a case leaves open whether products and
            sums are fused.
    """
    missing = uncompiled(modules)
    if missing:
        raise ValueError(f"no compile_cases() has a case of {', '.join(missing)}")
    for module in modules:
        names = [case.name for case in cases_of(module)]
        if len(set(names)) < len(names):
            raise ValueError(f"compile_cases() of {module.__name__} gives two cases one name: {names}")
        # What a launcher leaves open, the next Triton may decide otherwise.
        silent = [case.name for case in cases_of(module) if "enable_fp_fusion" not in case.options]
        if silent:
            raise ValueError(f"no enable_fp_fusion in {', '.join(silent)} of {module.__name__}")


def compile_all(modules: Sequence[str], targets: Sequence[str], known: Table) -> Table:
    """Return the figures of every case of the modules on every target; compiles on all cores.

    Args:
        modules: their names.
        targets: names in TARGETS.
        known: figures to keep where nothing changed and a kernel's first case is not concerned.
    """
    check([import_module(name) for name in modules])
    table: dict[str, dict[str, Compiled]] = {}
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(os.cpu_count() or 1, 8), mp_context=spawn) as pool:
        waiting = []
        for name in modules:
            seen: set[int] = set()
            table[name] = {}
            for i, case in enumerate(cases_of(import_module(name))):
                entry = table[name][case.name] = Compiled(fingerprint(case), {})
                before = known.get(name, {}).get(case.name)
                kept = (
                    before is not None and before.fingerprint == entry.fingerprint and id(case.kernel) in seen
                )
                seen.add(id(case.kernel))
                for target in targets:
                    if before is not None and kept and target in before.figures:
                        entry.figures[target] = before.figures[target]
                    else:
                        waiting.append((entry, target, pool.submit(_compile_by_name, name, i, target)))
        for entry, target, future in waiting:
            entry.figures[target] = future.result()
    return {name: cases for name, cases in table.items() if cases}


def main() -> None:
    """Compile and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--module", action="append", help="module with compile_cases() (default: Gradian's)")
    parser.add_argument("--target", action="append", choices=list(TARGETS), help="(default: those required)")
    parser.add_argument(
        "--record", type=Path, metavar="FILE", help="table to keep figures from (default: none)"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as cache:
        os.environ["TRITON_CACHE_DIR"] = cache
        modules = options.module or kernel_modules()
        known = from_json(options.record.read_text(encoding="utf-8")) if options.record else {}
        table = compile_all(modules, options.target or REQUIRED, known)
    print(to_json(table), end="")


if __name__ == "__main__":
    main()
