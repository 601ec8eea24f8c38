"""The benchmarks run, measure what they say, and refuse to measure what disagrees."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path

import pytest
import torch

from gradian.config.schema import GradsConfig

FOLDER = Path(__file__).parents[2] / "benchmarks"
CPU = torch.device("cpu")
QUICK = ["--quick", "--repeats", "1", "--threads", "1"]
FIGURES = {"case", "ours_s", "baseline_s", "ratio"}
PEAKS = {"ours_peak_bytes", "baseline_peak_bytes"}
MORE_FIGURES = {
    "bench_loss": PEAKS,
    "bench_index": {*PEAKS, "shares"},
    "bench_scoring": {
        *("ours_min_s", "ours_max_s", "baseline_min_s", "baseline_max_s", "scaled", "tile_rows"),
        *("reads", "gb_per_s", "read_share", "bandwidth_gb_per_s", "rows_per_s"),
    },
}
CASES = {
    "bench_loss": [
        "supervised 20% vocab 128k, against gather then upcast",
        "supervised 20% vocab 128k, against full logits",
    ],
    "bench_index": [
        f"supervised {share} vocab {vocabulary}{ending}"
        for vocabulary in ("8k", "128k")
        for share in ("20%", "100%")
        for ending in ("", ", index on disk")
    ],
    "bench_scoring": [
        f"{baseline} {dtype} m={m} 1T"
        for dtype in ("float32", "float16")
        for m in (1, 16)
        for baseline in ("torch", "loop", "numpy", "torch gram")
    ],
}


@pytest.fixture(autouse=True)
def benchmarks_on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """As running one of them puts its folder there."""
    monkeypatch.syspath_prepend(str(FOLDER))


@pytest.mark.parametrize("name", CASES)
def test_a_benchmark_writes_one_row_a_case(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "rows.json"
    assert import_module(name).main([*QUICK, "--json", str(file)]) == 0
    rows = json.loads(file.read_text())
    assert [row["case"] for row in rows] == CASES[name]
    for row in rows:
        assert set(row) == FIGURES | MORE_FIGURES[name]
        assert row["ratio"] == row["ours_s"] / row["baseline_s"]
        assert min(value for value in row.values() if isinstance(value, (int, float))) > 0
    assert "CPU threads" in capsys.readouterr().out


@pytest.mark.parametrize("name", CASES)
def test_what_disagrees_is_not_measured(
    monkeypatch: pytest.MonkeyPatch, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    module = import_module(name)
    if name == "bench_loss":
        right = module.VARIANTS["full logits"]
        monkeypatch.setitem(module.VARIANTS, "full logits", lambda model, batch: 1.001 * right(model, batch))
    elif name == "bench_scoring":
        right = module.loop_scores
        monkeypatch.setattr(module, "loop_scores", lambda *args: 1.001 * right(*args))
    else:
        right = module.train_pass
        monkeypatch.setattr(
            module, "train_pass", lambda *args: [1.001 * gradient for gradient in right(*args)]
        )
    assert module.main(QUICK) == 1
    printed = capsys.readouterr()
    assert "differ" in printed.err
    assert printed.out == ""


def test_the_shares_of_an_index_on_disk_are_parts_of_its_time() -> None:
    bench = import_module("bench_index")
    loaded = bench.random_lora(bench.QUICK, 61, CPU, torch.float32)
    collector = bench.GradientCollector(loaded, GradsConfig(storage_dtype="float16"), seed=0)
    rows = bench.random_rows(bench.QUICK, 61, 0.5)
    shares = bench.where_the_time_goes(lambda: bench.write_index(collector, rows))
    assert list(shares) == ["forward", "backward", "einsum", "cast", "write", "checksum"]
    assert min(shares.values()) > 0
    assert sum(shares.values()) < 1


def test_the_profiled_passes_read_what_they_say(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["--dtype", "float16", "--queries", "3", "--rows", "5", "--columns", "70", "--repeats", "2"]
    assert import_module("profile_scoring").main(command) == 0
    assert "2 x 700 bytes of float16, 3 queries: query_dots 1,050 products" in capsys.readouterr().out


def test_peak_bytes_is_what_was_held_at_once() -> None:
    peak_bytes = import_module("side_by_side").peak_bytes
    before = torch.zeros(500_000)

    def run() -> None:
        for _ in range(3):
            a = torch.zeros(300_000)
            b = a + 1
            del a, b
        torch.zeros(100_000)
        before.set_()

    # The other bytes are scalars.
    assert 0 <= peak_bytes(run, CPU) - 2 * 300_000 * 4 < 64


@pytest.mark.parametrize(("figure", "verdict"), [(0.59, "met"), (0.61, "MISSED"), (float("nan"), "MISSED")])
@pytest.mark.parametrize("measure", ["time", "peak"])
def test_a_missed_goal_is_said(measure: str, figure: float, verdict: str) -> None:
    module = import_module("side_by_side")
    time, peak = (figure, 5.0) if measure == "time" else (5.0, figure)
    rows = [module.Row("other", 1, 1, 9, 9, 1), module.Row("one", time, 1, time, peak, 1)]
    assert f"goal {verdict}: one" in module.Goal("one", measure, 0.6).sentence(rows)
    assert f"goal {verdict}: one" in module.verdict("one", -figure, at_least=-0.6)
