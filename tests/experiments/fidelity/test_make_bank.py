from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pytest

from experiments.fidelity.bank import RUNS, read_bank
from experiments.fidelity.make_bank import ADAPTER, BankMaker, BankSettings
from experiments.fidelity.plan import subset, tail_size
from experiments.fidelity.scoring import read_scores
from gradian.errors import GradianError
from tests.experiments.fidelity.conftest import N_SUBSETS


def test_it_holds_every_kind_of_retraining(small_bank: Path, small_settings: BankSettings) -> None:
    bank = read_bank(small_bank)
    kinds = {name.split("/")[0] for name in bank.records}
    assert kinds == {"base", "whole", "without", "subset", "removed"}
    for seed in small_settings.seeds:
        assert f"whole/{seed}" in bank.records
        assert f"without/capitals/{seed}" in bank.records
        for k in range(N_SUBSETS):
            kept = bank.records[f"subset/{k:03}/{seed}"].kept
            assert (kept == subset(bank.n, k, small_settings.plan_seed)).all()
            assert kept.sum() == bank.n // 2
    removed = [record for record in bank if record.name.startswith("removed/")]
    assert all((~record.kept).sum() == tail_size(bank.n) for record in removed)
    # Two seeds differ, and so do two subsets.
    drawn = [record for record in bank if record.name.startswith(("subset/", "whole/"))]
    assert len({record.losses.tobytes() for record in drawn}) == len(drawn) == 2 * (N_SUBSETS + 1)


def test_killed_anywhere_it_goes_on_and_ends_with_the_same_bytes(
    small_bank: Path, tiny_model_dir: Path, small_settings: BankSettings, tmp_path: Path
) -> None:
    whole = (small_bank / RUNS).read_bytes()
    lines = whole.splitlines(keepends=True)
    shutil.copytree(small_bank, tmp_path / "bank")
    # In the middle of a line, with the adapter there or lost.
    for done, adapter in ((len(lines) - 2, True), (2, False)):
        (tmp_path / "bank" / RUNS).write_bytes(b"".join(lines[:done]) + lines[done][:30])
        if not adapter:
            shutil.rmtree(tmp_path / "bank" / ADAPTER)
        said: list[str] = []
        maker = BankMaker(tmp_path / "bank", tmp_path / "work", tiny_model_dir, small_settings, said.append)
        maker.make(N_SUBSETS)
        assert (tmp_path / "bank" / RUNS).read_bytes() == whole
        assert len([line for line in said if "steps" in line]) == len(lines) - done
        for name in (f"{ADAPTER}/adapter_model.safetensors", f"{ADAPTER}/adapter_config.json"):
            assert (tmp_path / "bank" / name).read_bytes() == (small_bank / name).read_bytes()


def test_asked_for_more_subsets_it_adds_them_and_keeps_what_is_there(
    small_bank: Path, tiny_model_dir: Path, small_settings: BankSettings, tmp_path: Path
) -> None:
    shutil.copytree(small_bank, tmp_path / "bank")
    bank = BankMaker(
        tmp_path / "bank", tmp_path / "work", tiny_model_dir, small_settings, lambda text: None
    ).make(N_SUBSETS + 1)
    assert f"subset/{N_SUBSETS:03}/2" in bank.records
    assert (tmp_path / "bank" / RUNS).read_bytes().startswith((small_bank / RUNS).read_bytes())


def test_a_bank_of_another_recipe_is_refused(
    small_bank: Path, tiny_model_dir: Path, small_settings: BankSettings, tmp_path: Path
) -> None:
    shutil.copytree(small_bank, tmp_path / "bank")
    other = dataclasses.replace(small_settings, train={**small_settings.train, "learning_rate": 0.5})
    with pytest.raises(GradianError, match="something else") as caught:
        BankMaker(tmp_path / "bank", tmp_path / "work", tiny_model_dir, other)
    assert "other recipe, settings" in str(caught.value)


def test_scores_are_of_every_query_and_row(small_bank: Path) -> None:
    bank, scores = read_bank(small_bank), read_scores(small_bank)
    assert {table.shape for name, table in scores.tables.items() if name != "representation"} == {
        (len(bank.measured), bank.n)
    }
    assert scores.norms.shape == (bank.n,)
    tracin, graddot = scores.tables["tracin"], scores.tables["graddot"]
    np.testing.assert_allclose(tracin, 0.02 * graddot, rtol=1e-5)
    assert scores.made_from["bytes"]["exact"] > scores.made_from["bytes"]["float16"]
