from __future__ import annotations

import json
from pathlib import Path

import pytest

from gradian.runs.read import read_run_folder


@pytest.mark.parametrize(
    ("base", "trainer", "quantised"),
    [
        ("unsloth/llama-3-8b-bnb-4bit", "unsloth", True),
        ("unsloth/Llama-3.2-1B", "unsloth", None),
        ("acme/tiny-unsloth-bnb-4bit", "unsloth", True),
        ("acme/tiny", "transformers", None),
    ],
)
def test_the_base_model_tells_unsloth_and_a_quantised_base(
    tmp_path: Path, base: str, trainer: str, quantised: bool | None
) -> None:
    (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": base}))
    run = read_run_folder(tmp_path)

    assert (run.trainer, run.base_model, run.hyper.load_in_4bit) == (trainer, base, quantised)


def test_a_model_card_of_unsloth_tells_it(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("---\ntags:\n- unsloth\n- trl\n---\n")
    assert read_run_folder(tmp_path).trainer == "unsloth"
