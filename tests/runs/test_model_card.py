from __future__ import annotations

import time
from pathlib import Path

import pytest

from gradian.runs.files import RunFiles
from gradian.runs.model_card import ModelCard, read_card


def card(folder: Path, text: str) -> ModelCard:
    (folder / "README.md").write_text(text)
    return read_card(RunFiles(folder))


@pytest.mark.parametrize(
    "text",
    [
        "---\nbase_model: a\n---\n# Title\n---\n",
        "--- \n\n  \nbase_model: a\n---",
        "---\r\nbase_model: a\r\n--- \r\nmore",
        "---\nbase_model: a\n\n---\t\n\n",
    ],
)
def test_front_matter_lies_between_two_lines_of_dashes(tmp_path: Path, text: str) -> None:
    assert card(tmp_path, text).base_model == "a"


@pytest.mark.parametrize(
    "text",
    [
        "---\nbase_model: a\n",
        "---base_model: a\n---\n",
        "\n---\nbase_model: a\n---\n",
        "---\n\n---\n",
        "---\nbase_model: a\n---x\n",
    ],
)
def test_a_card_without_both_lines_has_no_front_matter(tmp_path: Path, text: str) -> None:
    assert card(tmp_path, text).base_model is None


def test_a_version_follows_its_library_with_a_colon_or_without(tmp_path: Path) -> None:
    text = "- PEFT 0.18.0\n* TRL: 1.16.0\n  - PyTorch : 2.9\n-Transformers\t5.1 \n- Datasets:4\n- PEFT 1 2\n"
    assert card(tmp_path, text).versions == {
        "peft": "0.18.0",
        "trl": "1.16.0",
        "torch": "2.9",
        "transformers": "5.1",
    }


@pytest.mark.parametrize(
    "text",
    [
        "---" + "\n" * 1_000_000,
        "---\n" + "\n--- x" * 200_000,
        "- PEFT" + " " * 1_000_000 + "x",
        "- PEFT" + " :" * 500_000 + "x",
        "```yaml\naxolotl" + "```yaml\n" * 200_000,
    ],
)
def test_a_card_made_to_exhaust_costs_no_time(tmp_path: Path, text: str) -> None:
    start = time.process_time()
    assert card(tmp_path, text).versions == {}
    assert time.process_time() - start < 1
