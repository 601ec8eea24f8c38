from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pytest

from gradian.errors import AdapterError, ModelError
from gradian.model.checkpoint import (
    adapter_folder,
    adapter_weights,
    base_folder,
    checkpoint_fingerprint,
    other_adapters,
)


def put_adapter(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text("{}")


def test_a_fingerprint_is_the_sha256_of_each_model_file(tiny_model_dir: Path, tiny_adapter_dir: Path) -> None:
    prints = checkpoint_fingerprint(str(tiny_model_dir), str(tiny_adapter_dir))
    weights = (tiny_model_dir / "model.safetensors").read_bytes()
    assert prints["base/model.safetensors"] == hashlib.sha256(weights).hexdigest()
    assert {"base/config.json", "adapter/adapter_config.json", "adapter/adapter_model.safetensors"} <= set(
        prints
    )
    assert not any("tokenizer" in name for name in prints)
    assert list(prints) == sorted(prints)


def test_one_changed_bit_changes_the_fingerprint(tiny_model_dir: Path, tmp_path: Path) -> None:
    copy = tmp_path / "base"
    shutil.copytree(tiny_model_dir, copy)
    before = checkpoint_fingerprint(str(copy), None)
    data = bytearray((copy / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (copy / "model.safetensors").write_bytes(data)
    after = checkpoint_fingerprint(str(copy), None)
    assert {name for name in before if before[name] != after[name]} == {"base/model.safetensors"}


def test_where_the_folder_lies_does_not_matter(tiny_model_dir: Path, tmp_path: Path) -> None:
    copy = tmp_path / "elsewhere"
    shutil.copytree(tiny_model_dir, copy)
    assert checkpoint_fingerprint(str(copy), None) == checkpoint_fingerprint(str(tiny_model_dir), None)


def test_a_second_copy_of_the_weights_as_a_pickle_is_not_an_input(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "base"
    shutil.copytree(tiny_model_dir, copy)
    before = checkpoint_fingerprint(str(copy), None)
    (copy / "pytorch_model.bin").write_bytes(b"the same weights again")
    assert checkpoint_fingerprint(str(copy), None) == before


@pytest.mark.parametrize("name", ["./nowhere", "/no/such/folder", "~/no-such-folder-here"])
def test_a_path_that_is_not_there_is_not_looked_up_on_the_hub(name: str) -> None:
    with pytest.raises(ModelError, match="no such folder"):
        base_folder(name)
    with pytest.raises(AdapterError, match="no such folder"):
        adapter_folder(name)


def test_a_hub_id_that_is_not_cached_says_so_without_a_network() -> None:
    with pytest.raises(ModelError, match=r"acme/not-cached: .*hub cache"):
        base_folder("acme/not-cached")
    with pytest.raises(AdapterError, match=r"acme/not-cached: .*hub cache"):
        adapter_folder("acme/not-cached")


def test_a_hub_id_resolves_to_its_snapshot_in_the_local_cache(
    tiny_model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub.constants as constants

    commit = "a" * 40
    repository = tmp_path / "models--acme--tiny"
    shutil.copytree(tiny_model_dir, repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    folder = base_folder("acme/tiny")
    assert folder == repository / "snapshots" / commit
    assert checkpoint_fingerprint("acme/tiny", None) == checkpoint_fingerprint(str(tiny_model_dir), None)


def test_no_base_model_at_all_is_an_error() -> None:
    with pytest.raises(ModelError, match="no base model"):
        base_folder("")


def test_an_adapter_given_as_the_base_model_is_recognised(tiny_adapter_dir: Path) -> None:
    with pytest.raises(ModelError, match="--adapter"):
        base_folder(str(tiny_adapter_dir))


def test_several_adapters_in_one_folder_are_listed_in_the_order_of_their_steps(tmp_path: Path) -> None:
    for name in ("checkpoint-900", "checkpoint-1000", "checkpoint-50"):
        put_adapter(tmp_path / name)
    with pytest.raises(AdapterError, match="checkpoint-50, checkpoint-900, checkpoint-1000") as caught:
        adapter_folder(str(tmp_path))
    assert str(tmp_path / "checkpoint-1000") in (caught.value.fix or "")


def test_an_adapter_one_folder_deeper_is_pointed_at(tmp_path: Path) -> None:
    put_adapter(tmp_path / "adapter")
    with pytest.raises(AdapterError, match="one folder deeper"):
        adapter_folder(str(tmp_path))


def test_checkpoints_under_a_finished_adapter_are_not_ambiguous(tmp_path: Path) -> None:
    put_adapter(tmp_path)
    put_adapter(tmp_path / "checkpoint-5")
    assert adapter_folder(str(tmp_path)) == tmp_path


def test_a_folder_without_an_adapter_or_without_weights_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(AdapterError, match=r"adapter_config\.json"):
        adapter_folder(str(tmp_path))
    with pytest.raises(AdapterError, match=r"adapter_model\.safetensors, adapter_model\.bin"):
        adapter_weights(tmp_path)


def test_safetensors_come_before_a_pickle(tmp_path: Path) -> None:
    (tmp_path / "adapter_model.bin").write_bytes(b"")
    assert adapter_weights(tmp_path).name == "adapter_model.bin"
    (tmp_path / "adapter_model.safetensors").write_bytes(b"")
    assert adapter_weights(tmp_path).name == "adapter_model.safetensors"


@pytest.mark.parametrize("name", ["~nobody-of-that-name/model", "x" * 5000, "./" + "x" * 5000])
def test_a_name_that_no_folder_can_have_is_a_model_that_is_not_there(name: str) -> None:
    with pytest.raises(ModelError):
        base_folder(name)
    with pytest.raises(AdapterError):
        adapter_folder(name)


def test_a_folder_numbered_by_no_plain_digits_comes_first(tmp_path: Path) -> None:
    for name in ("checkpoint-10", "checkpoint-9", "checkpoint-\N{SUPERSCRIPT TWO}", "checkpoint-\u0663"):
        put_adapter(tmp_path / name)
    assert other_adapters(tmp_path)[2:] == ["checkpoint-9", "checkpoint-10"]
