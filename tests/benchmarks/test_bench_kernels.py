"""The kernels' benchmark checks before it measures, and claims no figure where there is no GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from gradian import ops
from gradian.ops._dispatch import OPS

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "bench_kernels.py"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    # As running it puts its folder on the path.
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    return import_module("bench_kernels")


def test_without_a_gpu_it_checks_every_kernel_and_times_none(tmp_path: Path) -> None:
    file = tmp_path / "results" / "rows.json"
    # The script itself turns the interpreter on.
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-W", "error", str(SCRIPT), "--quick", "--json", str(file)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "Nothing was timed" in result.stdout
    assert "goal" not in result.stdout
    assert "was not run" not in result.stdout
    document = json.loads(file.read_text())
    assert not document["timed"]
    assert document["setting"]["torch"] == torch.__version__
    rows = document["rows"]
    ops.load_all()
    assert {row["case"].split()[0] for row in rows} == {
        name for name, op in OPS.items() if "triton" in op.implementations
    }
    for row in rows:
        assert row["way"] in ("triton", "reference")
        assert 0 <= row["worst_error"] <= 1
        assert {value for name, value in row.items() if name not in ("case", "way", "worst_error")} == {None}


@pytest.mark.parametrize("impl", ["triton", "reference"])
def test_a_wrong_result_is_said_and_ends_the_run(
    bench: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], impl: str
) -> None:
    kernel = next(kernel for kernel in bench.KERNELS if kernel.make.__name__ == "cross_entropy_case")
    small = replace(kernel, quick_shapes=((2, 5),), dtypes=(torch.float32,))
    monkeypatch.setattr(bench, "KERNELS", (small,))
    implementations = OPS["cross_entropy"].implementations
    right = implementations[impl]
    wrong = replace(right, function=lambda *inputs: right.function(*inputs) * (1 + 1e-6))
    monkeypatch.setitem(implementations, impl, wrong)
    assert bench.main(["--quick"]) == 1
    printed = capsys.readouterr()
    assert f"cross_entropy float32 2 x 5: {impl} differs" in printed.err
    assert printed.out == ""


def test_an_output_that_is_nan_or_of_another_shape_is_beyond_every_bound(bench: Any) -> None:
    truth = import_module("kernel_cases").Truth(
        "y", torch.zeros(3, dtype=torch.float64), torch.tensor([0.0, 1.0, 1.0])
    )
    assert truth.excess(torch.tensor([0.0, 0.5, -0.25])) == 0.5
    for output in (torch.tensor([0.0, float("nan"), 0.0]), torch.zeros(2), torch.tensor([1e-30, 0.0, 0.0])):
        assert truth.excess(output) == float("inf")


def test_a_bound_without_elements_is_for_the_norm_of_the_error(bench: Any) -> None:
    truth = import_module("kernel_cases").Truth("y", torch.zeros(2).double(), torch.tensor(10.0))
    assert truth.excess(torch.tensor([3.0, 4.0])) == 0.5


def test_the_kernel_may_be_held_to_the_references_bits(bench: Any) -> None:
    case = bench.Case("one", "projection", (), {}, dict, tuple, least_bytes=0, same_bits=True)
    ours, theirs = torch.tensor([1.0]), torch.tensor([1.0 + 2**-23])
    assert bench.disagreements(case, {"triton": (ours,), "reference": (ours.clone(),)}, {}) == []
    found = bench.disagreements(case, {"triton": (ours,), "reference": (theirs,)}, {})
    assert found == ["one: triton differs from reference in some bit"]


def test_rows_set_each_way_beside_the_kernel_and_goals_name_the_fastest(bench: Any) -> None:
    case = bench.Case("cross_entropy", "cross_entropy", (), {}, dict, tuple, least_bytes=600, least_flops=20)
    medians = {"triton": 2.0, "reference": 8.0, "Liger": 4.0}
    times = {way: bench.Seconds(median, median / 2, median * 2) for way, median in medians.items()}
    zero = dict.fromkeys(medians, 0)
    rows = bench.timed_rows(case, zero, zero, times, copy=400.0)
    assert [(row.way, row.ratio) for row in rows] == [("triton", 1.0), ("reference", 0.25), ("Liger", 0.5)]
    assert (rows[0].bytes_per_second, rows[0].share_of_copy) == (300.0, 0.75)
    assert [row.flops_per_second for row in rows] == [10.0, 2.5, 5.0]
    fastest, share = bench.goals("cross_entropy", rows)
    assert fastest == (
        "goal met: cross_entropy: time against the fastest other way's (Liger) 0.500, at most 1 wanted"
    )
    assert share == "goal met: cross_entropy: share of a copy's bandwidth 0.750, at least 0.7 wanted"
