from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from gradian.runs.read import read_run_folder


class SFTConfig:
    """By its name one of trl's."""


def run_of(folder: Path, **values: Any) -> Any:
    made = SFTConfig()
    made.__dict__.update(values)
    (folder / "training_args.bin").write_bytes(pickle.dumps(made, protocol=2))
    return read_run_folder(folder)


@pytest.mark.parametrize(
    ("values", "limit", "source"),
    [
        ({"max_length": 1024}, 1024, "max_length"),
        ({"max_seq_length": 512}, 512, "max_seq_length"),
        ({"max_length": None, "max_seq_length": 2048}, 2048, "max_seq_length"),
        ({"max_length": 1024, "max_seq_length": 2048}, 1024, "max_length"),
        ({"max_length": None}, None, "max_length"),
    ],
)
def test_the_limit_under_either_name(
    tmp_path: Path, values: dict[str, Any], limit: int | None, source: str
) -> None:
    run = run_of(tmp_path, **values)

    assert (run.trainer, run.hyper.max_length) == ("trl", limit)
    assert run.sources["max_length"] == f"training_args.bin: {source}"
    assert (run.hyper.overlong_rows, run.sources["overlong_rows"]) == ("truncate", "default of trl")


def test_packing_and_the_loss_mask_are_read(tmp_path: Path) -> None:
    hyper = run_of(
        tmp_path,
        packing=True,
        packing_strategy="wrapped",
        padding_free=True,
        completion_only_loss=False,
        pad_token="<p>",
    ).hyper

    assert (hyper.packing, hyper.packing_strategy, hyper.padding_free) == (True, "wrapped", True)
    assert (hyper.completion_only_loss, hyper.assistant_only_loss, hyper.pad_token) == (False, None, "<p>")


def test_a_model_card_of_trl_is_enough_to_know_the_trainer_and_its_versions(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text(
        "---\ntags: [sft, trl]\n---\n\n### Framework versions\n\n- TRL: 1.16.0\n- Transformers: 5.24.0\n"
    )
    run = read_run_folder(tmp_path)
    assert (run.trainer, run.versions) == ("trl", {"trl": "1.16.0", "transformers": "5.24.0"})
