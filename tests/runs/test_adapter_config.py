from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from gradian.runs.adapter_config import read_lora
from gradian.runs.files import RunFiles

HEAD = "base_model.model."
SETTINGS = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["v", "q"], "use_rslora": True}


def folder(path: Path, tensors: dict[str, np.ndarray]) -> RunFiles:
    (path / "adapter_config.json").write_text(json.dumps(SETTINGS))
    save_file(tensors, path / "adapter_model.safetensors")
    return RunFiles(path)


def test_the_outline_of_the_weights_is_counted_and_zero_matrices_are_named(tmp_path: Path) -> None:
    live = np.zeros((300, 300), dtype=np.float16)
    live[-1, -1] = 1e-7  # A subnormal in the last place.
    tensors = {
        f"{HEAD}layers.0.q.lora_A.weight": np.ones((4, 8), dtype=np.float32),
        f"{HEAD}layers.0.q.lora_B.weight": np.full((8, 4), -0.0, dtype=np.float32),
        f"{HEAD}layers.0.v.lora_A.weight": np.zeros((4, 8), dtype=np.float32),
        f"{HEAD}layers.0.v.lora_B.weight": live,
        f"{HEAD}embed.lora_embedding_B": np.zeros((2, 2), dtype=np.float32),
        f"{HEAD}layers.0.v.lora_magnitude_vector": np.zeros(3, dtype=np.float32),
    }
    found = read_lora(folder(tmp_path, tensors), "")

    assert found is not None
    assert (found.n_modules, found.zero_b) == (3, ("embed", "layers.0.q"))
    assert found.n_parameters == sum(tensor.size for tensor in tensors.values())
    assert (found.r, found.alpha, found.scaling, found.target_modules) == (4, 8, 4.0, ("q", "v"))


@pytest.mark.parametrize("size", [0, 5, 60, -1])
def test_weights_that_were_cut_off_are_listed_and_the_settings_still_read(tmp_path: Path, size: int) -> None:
    files = folder(tmp_path, {f"{HEAD}q.lora_B.weight": np.zeros((8, 4), dtype=np.float32)})
    path = tmp_path / "adapter_model.safetensors"
    path.write_bytes(path.read_bytes()[:size])
    found = read_lora(files, "")

    assert found is not None
    assert (found.r, found.n_parameters) == (4, None)
    assert [entry.file for entry in files.unread] == ["adapter_model.safetensors"]
    assert "not a safetensors file" in files.unread[0].reason


@pytest.mark.parametrize(
    "header",
    [
        b"[]",
        b'{"a": 1}',
        b'{"a.lora_B": {"dtype": "F32", "shape": [1], "data_offsets": [-8, 4]}}',
        b'{"a": {"dtype": 1, "shape": ["x"], "data_offsets": [0, 4]}}',
        b"[" * 5000,
    ],
)
def test_a_header_that_lies_is_listed(tmp_path: Path, header: bytes) -> None:
    (tmp_path / "adapter_config.json").write_text(json.dumps(SETTINGS))
    (tmp_path / "adapter_model.safetensors").write_bytes(
        len(header).to_bytes(8, "little") + header + bytes(8)
    )
    files = RunFiles(tmp_path)
    read_lora(files, "")
    assert [entry.file for entry in files.unread] == ["adapter_model.safetensors"]


@pytest.mark.parametrize("text", ["[]", "{", "[" * 100_000, ""])
def test_settings_that_are_no_object_are_listed(tmp_path: Path, text: str) -> None:
    files = folder(tmp_path, {f"{HEAD}q.lora_B.weight": np.ones((8, 4), dtype=np.float32)})
    (tmp_path / "adapter_config.json").write_text(text)
    assert read_lora(files, "") is None
    assert [entry.file for entry in files.unread] == ["adapter_config.json"]


def test_the_real_adapter_has_no_zero_matrix(tmp_path: Path) -> None:
    case = Path(__file__).resolve().parents[1] / "fixtures" / "cases" / "29-run-trl1-transformers5" / "run"
    shutil.copy(case / "adapter_config.json", tmp_path)
    shutil.copy(case / "adapter_model.safetensors", tmp_path)
    found = read_lora(RunFiles(tmp_path), "")
    assert found is not None
    assert (found.n_modules, found.zero_b) == (14, ())
