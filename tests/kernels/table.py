"""What each kernel takes on each GPU: the recorded table, and what is wrong with another.

    python -m tests.kernels.table            # prints the recorded table, in Markdown
    python -m tests.kernels.table --write    # compiles what changed and records it; then run `make docs`

A register count above the recorded one by more than an allowance is a fault, and so is more shared memory. A
change that means it records the table again, so that a review sees what it costs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RECORDED = Path(__file__).with_name("table.json")
# What another release of the compiler may move without anyone having changed a kernel.
REGISTERS_ALLOWANCE = 8
SHARED_ALLOWANCE = 1024


@dataclass(frozen=True)
class Target:
    """A GPU to compile for.

    Attributes:
        backend: Triton's name of the vendor's backend.
        arch: as that backend wants it.
        warp: lanes of a warp.
        shared_limit: bytes of shared memory that one program may have.
        may_spill: whether registers may be spilled.
        required: whether a test holds the kernels to these limits; else the figures are information.
    """

    backend: str
    arch: int | str
    warp: int
    shared_limit: int
    may_spill: bool
    required: bool = True


TARGETS = {
    "sm_75": Target("cuda", 75, 32, 64 << 10, may_spill=True, required=False),
    "sm_80": Target("cuda", 80, 32, 163 << 10, may_spill=False),
    "sm_90": Target("cuda", 90, 32, 227 << 10, may_spill=False),
    "gfx942": Target("hip", "gfx942", 64, 64 << 10, may_spill=True),
}
REQUIRED = tuple(name for name, target in TARGETS.items() if target.required)


@dataclass(frozen=True)
class Figures:
    """What one compiled kernel takes.

    Attributes:
        registers: of a thread.
        shared: bytes of shared memory of a program.
        spills: bytes of spill stores and loads on NVIDIA's GPUs, spilled registers on AMD's.
    """

    registers: int
    shared: int
    spills: int


@dataclass(frozen=True)
class Compiled:
    """One case.

    Attributes:
        fingerprint: of everything that its machine code depends on.
        figures: by target.
    """

    fingerprint: str
    figures: dict[str, Figures]


# By module and case.
Table = Mapping[str, Mapping[str, Compiled]]


def to_json(table: Table) -> str:
    """Write a table, one case a line."""
    modules = []
    for module, cases in table.items():
        lines = (f"  {json.dumps(case)}: {json.dumps(asdict(entry))}" for case, entry in cases.items())
        modules.append(f" {json.dumps(module)}: {{\n" + ",\n".join(lines) + "\n }")
    return "{\n" + ",\n".join(modules) + "\n}\n"


def from_json(text: str) -> Table:
    """Read a table that `to_json` wrote."""
    return {
        module: {case: _entry(**fields) for case, fields in cases.items()}
        for module, cases in json.loads(text).items()
    }


def _entry(fingerprint: str, figures: Mapping[str, Mapping[str, int]]) -> Compiled:
    return Compiled(fingerprint, {target: Figures(**each) for target, each in figures.items()})


def recorded() -> Table:
    """Return the recorded table."""
    return from_json(RECORDED.read_text(encoding="utf-8"))


def compiled(targets: Sequence[str], modules: Sequence[str] = (), record: Path | None = None) -> Table:
    """Compile the cases of the modules (Gradian's kernels if none) in another process; see `compiling`.

    Args:
        targets: names in TARGETS.
        modules: their names.
        record: table from which cases that did not change keep their figures.

    Raises:
        RuntimeError: the process failed; with what it wrote.
    """
    command = [sys.executable, "-W", "error", "-m", "tests.kernels.compiling"]
    command += [f"--target={target}" for target in targets] + [f"--module={module}" for module in modules]
    command += [] if record is None else [f"--record={record}"]
    # The suite has Triton interpret kernels; see tests/conftest.py.
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise RuntimeError(result.stderr)
    return from_json(result.stdout)


def faults(table: Table) -> Iterator[str]:
    """Say where a kernel spills or asks for more shared memory than the GPU has."""
    for case, target, figures in _entries(table):
        if figures.spills and not TARGETS[target].may_spill:
            yield f"{case} spills on {target}: {figures.spills} bytes, with {figures.registers} registers"
        limit = TARGETS[target].shared_limit
        if figures.shared > limit:
            yield f"{case} asks for {figures.shared} bytes of shared memory on {target}, which has {limit}"


def differences(table: Table, record: Table) -> Iterator[str]:
    """Say where a table is beyond the recorded one, or is about other cases."""
    cases, recorded_cases = ({(m, c) for m in t for c in t[m]} for t in (table, record))
    for module, case in sorted(cases ^ recorded_cases):
        yield f"{module} {case} is {'not recorded' if (module, case) in cases else 'recorded, but no case'}"
    before = {(case, target): figures for case, target, figures in _entries(record)}
    for case, target, figures in _entries(table):
        was = before.get((case, target), figures)
        for what, now, most in (
            ("registers", figures.registers, was.registers + REGISTERS_ALLOWANCE),
            ("bytes of shared memory", figures.shared, was.shared + SHARED_ALLOWANCE),
            ("spills", figures.spills, was.spills),
        ):
            if now > most:
                yield f"{case} takes {now} {what} on {target}, at most {most} by the recorded table"


def _entries(table: Table) -> Iterator[tuple[str, str, Figures]]:
    for module, cases in table.items():
        for case, entry in cases.items():
            for target, figures in entry.figures.items():
                yield f"{module} {case}", target, figures


def main() -> None:
    """Print or write."""
    from tests.kernels.page import compiled_kernels

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="compile and record")
    if parser.parse_args().write:
        RECORDED.write_text(to_json(compiled(tuple(TARGETS), record=RECORDED)), encoding="utf-8")
    print(compiled_kernels(recorded()), end="")


if __name__ == "__main__":
    main()
