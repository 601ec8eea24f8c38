"""docs/fidelity.md says what the bank in the repository says."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from safetensors.numpy import load_file, save_file

from experiments.fidelity.make_bank import ADAPTER, FOLDER
from experiments.fidelity.page import BEGIN, END, with_figures
from experiments.fidelity.score import page_figures, read_evidence
from gradian.errors import GradianError

PAGE = Path(__file__).resolve().parents[3] / "docs" / "fidelity.md"
MOST_BYTES = 20_000_000


def test_the_page_says_what_the_bank_says() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert with_figures(page, page_figures(FOLDER)) == page


def test_the_bank_is_small_and_of_fifty_halves_at_least() -> None:
    assert sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file()) < MOST_BYTES
    evidence = read_evidence(FOLDER)
    assert len(evidence.subset_numbers(evidence.seeds[0])) >= 50
    assert len(evidence.subset_numbers(evidence.seeds[1])) >= 25


def test_any_bank_gives_every_table(small_bank: Path) -> None:
    text = page_figures(small_bank)
    assert text.count("|---|") >= 5
    for name in ("datainf", "graddot", "tracin", "BM25", "random", "countsketch", "float16", "other seed"):
        assert name in text
    assert page_figures(small_bank) == text
    assert "nan" not in text


def test_a_page_without_the_part_is_an_error() -> None:
    assert with_figures(f"a\n{BEGIN}old\n{END}b\n", "new") == f"a\n{BEGIN}\nnew\n{END}b\n"
    with pytest.raises(ValueError, match="want a part"):
        with_figures("a page\n", "new")


def test_scores_of_another_adapter_are_refused(small_bank: Path, tmp_path: Path) -> None:
    shutil.copytree(small_bank, tmp_path / "bank")
    weights = tmp_path / "bank" / ADAPTER / "adapter_model.safetensors"
    save_file({name: 2 * value for name, value in load_file(weights).items()}, weights)
    with pytest.raises(GradianError, match="not those of the bank"):
        read_evidence(tmp_path / "bank")
