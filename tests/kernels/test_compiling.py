"""Every kernel becomes machine code for GPUs that are not here, and takes what is recorded."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.kernels.table import (
    RECORDED,
    REQUIRED,
    ROOT,
    Compiled,
    Figures,
    Table,
    compiled,
    differences,
    faults,
    from_json,
    recorded,
    to_json,
)

SAMPLES = "tests.kernels.sample_kernels"
UNLISTED = """
import triton
from gradian.kernels.compile_case import CompileCase

@triton.jit
def listed(x_ptr):
    pass

@triton.jit
def forgotten(x_ptr):
    pass

def compile_cases():
    return (CompileCase("listed", listed, {{"x_ptr": "*fp32"}}, {{}}, {options}),)
"""


@pytest.mark.slow
def test_every_kernel_compiles_without_spills_and_within_the_recorded_table() -> None:
    table = compiled(REQUIRED, record=RECORDED)
    assert [*faults(table), *differences(table, recorded())] == []


def test_a_spill_and_too_much_shared_memory_are_found_and_only_what_changed_is_compiled_again(
    tmp_path: Path,
) -> None:
    real = compiled(["sm_80"], [SAMPLES])
    found = "\n".join(faults(real))
    assert f"{SAMPLES} spilling spills on sm_80" in found
    assert f"{SAMPLES} crowded asks for" in found
    assert len(found.splitlines()) == 2

    lie = {"sm_80": Figures(1, 1, 1)}
    cases = {case: Compiled(entry.fingerprint, lie) for case, entry in real[SAMPLES].items()}
    assert [*cases] == ["twice", "spilling", "crowded", "roomy"]
    cases["roomy"] = Compiled("another", lie)
    record = tmp_path / "table.json"
    record.write_text(to_json({SAMPLES: cases}))
    again = compiled(["sm_80"], [SAMPLES], record)
    # The first case of each kernel is compiled whatever the record says.
    assert [case for case, entry in again[SAMPLES].items() if entry.figures == lie] == ["crowded"]
    assert {**again[SAMPLES], "crowded": real[SAMPLES]["crowded"]} == real[SAMPLES]


@pytest.mark.parametrize(
    ("source", "found"),
    [
        (UNLISTED.format(options={"enable_fp_fusion": False}), "has a case of hiding_kernels.forgotten"),
        (UNLISTED.format(options={}).replace("def forgotten", "def listed"), "no enable_fp_fusion"),
    ],
    ids=["a kernel without a case", "fusion left to Triton"],
)
def test_a_module_that_hides_something_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, found: str
) -> None:
    (tmp_path / "hiding_kernels.py").write_text(source)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(RuntimeError, match=found):
        compiled(["sm_80"], ["hiding_kernels"])


def test_every_launch_says_whether_products_and_sums_are_fused() -> None:
    silent = [
        f"{file.name}:{node.lineno}"
        for file in (ROOT / "kernels" / "triton").glob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Subscript)
        and not {None, "enable_fp_fusion"} & {keyword.arg for keyword in node.keywords}
    ]
    assert silent == []


def figures_of(registers: int = 32, shared: int = 1024, spills: int = 0) -> Table:
    return {"module": {"case": Compiled("0f", {"sm_80": Figures(registers, shared, spills)})}}


@pytest.mark.parametrize(
    ("table", "found"),
    [
        (figures_of(), ""),
        (figures_of(registers=40, shared=2048), ""),
        (figures_of(registers=1, shared=0), ""),
        (figures_of(registers=41), "takes 41 registers on sm_80, at most 40"),
        (figures_of(shared=2049), "takes 2049 bytes of shared memory on sm_80"),
        (figures_of(spills=1), "takes 1 spills"),
        ({"module": {}}, "module case is recorded, but no case"),
        ({**figures_of(), "other": figures_of()["module"]}, "other case is not recorded"),
    ],
)
def test_what_is_beyond_the_recorded_table_is_said(table: Table, found: str) -> None:
    said = "\n".join(differences(table, figures_of()))
    assert found in said
    assert bool(found) == bool(said)


def test_a_table_survives_its_file() -> None:
    other = {"a": Compiled("1", {"gfx942": Figures(1, 2, 3)}), "b": Compiled("2", {})}
    table = {**figures_of(), "other": other}
    assert from_json(to_json(table)) == table
