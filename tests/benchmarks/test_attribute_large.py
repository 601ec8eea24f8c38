"""The command on a generated index: found under its id, scored, and within the bound of float64."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from gradian.store.reader import IndexReader
from gradian.store.writer import open_writer
from gradian.types import BlockSpec

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def benchmarks_on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """As running one of them puts its folder there."""
    monkeypatch.syspath_prepend(str(FOLDER))


@pytest.mark.slow
def test_the_command_finds_the_generated_index_and_scores_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "large.json"
    command = ["--quick", "--no-reference", "--work", str(tmp_path / "work"), "--json", str(file)]
    assert import_module("attribute_large").main(command) == 0
    (row,) = json.loads(file.read_text())
    report = json.loads((tmp_path / "work/ours/report.json").read_text())
    assert len(report["examples"]) == row["rows"]
    log = (tmp_path / "work/ours.log").read_text()
    assert f"found whole with {row['rows']} rows" in log
    assert 0 < row["sample_error"] <= 4
    assert row["sample_spearman"] > 0.99
    anonymous, mapped = row["ours_peak_anonymous_bytes"], row["ours_peak_file_backed_bytes"]
    assert max(anonymous, mapped) < row["ours_peak_bytes"] <= 1.05 * (anonymous + mapped)
    assert "peak resident" in capsys.readouterr().out
    assert not (tmp_path / "work/cache").exists()


def test_a_score_beyond_the_bound_ends_with_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = import_module("attribute_large")
    right = module.exact_scores

    def wrong(*args: object) -> tuple[np.ndarray, np.ndarray]:
        scores, magnitude = right(*args)
        return scores + 5 * module.EPS * magnitude, magnitude

    run = module.CommandRun(1.0, module.Memory(), np.arange(3.0))
    monkeypatch.setattr(module, "exact_scores", wrong)
    monkeypatch.setattr(module, "attribute", lambda *args: run)
    assert module.main(["--quick", "--work", str(tmp_path)]) == 1
    assert "off by more than 4 eps" in capsys.readouterr().err


def test_generated_gradients_follow_from_the_seed_and_differ_between_rows(tmp_path: Path) -> None:
    generated = import_module("generated_index")
    blocks = (BlockSpec("a", ((7,),), 0), BlockSpec("b", ((30,),), 7))
    n, chunk = 20, 6
    supervised = np.arange(n) + 1

    def written(name: str, seed: int) -> IndexReader:
        gradients = generated.GeneratedGradients(blocks, "float16", chunk, seed)
        with open_writer(tmp_path / name, {}, blocks, n, "float16", chunk) as writer:
            return generated.write_generated(writer, blocks, gradients, supervised)

    first, same, other = written("first", 0), written("same", 0), written("other", 1)
    rows = [np.concatenate([tile for _, tile in first.tiles(block)]) for block in range(2)]
    assert len(np.unique(rows[1], axis=0)) == n
    assert np.isfinite(first.sq_norms).all()
    assert (first.sq_norms > 0).all()
    assert np.array_equal(first.supervised_tokens, supervised)
    assert np.array_equal(first.sq_norms, same.sq_norms)
    assert not np.array_equal(first.sq_norms, other.sq_norms)
