from __future__ import annotations

from pathlib import Path

import pytest

from gradian.config import GradsConfig
from gradian.errors import DiskSpaceError
from gradian.store.disk import RESERVE_BYTES, check_disk, estimate_bytes, levers
from gradian.types import BlockSpec

BLOCKS = (
    BlockSpec("model.layers.0.mlp.down_proj", ((8, 4096), (4096, 8)), 0),
    BlockSpec("model.layers.0.self_attn.q_proj", ((8, 64), (64, 8)), 65536),
)


def test_an_index_that_fits_is_let_through(tmp_path: Path) -> None:
    check_disk(tmp_path / "not" / "there" / "yet", 1000, GradsConfig())
    assert list(tmp_path.iterdir()) == []


def test_an_index_that_does_not_fit_names_the_levers_with_their_effect(tmp_path: Path) -> None:
    grads = GradsConfig(chunk_size=16)
    need = estimate_bytes(BLOCKS, 100, "float32", 16)
    with pytest.raises(DiskSpaceError) as caught:
        check_disk(tmp_path, 10**18, grads, blocks=BLOCKS, n=100)
    text = str(caught.value)
    assert "1,000,000,000,000,000,000 bytes" in text
    half = estimate_bytes(BLOCKS, 100, "float16", 16)
    assert f"grads.storage_dtype: float16 needs {half:,} bytes" in text
    one = estimate_bytes(BLOCKS[:1], 100, "float32", 16)
    assert f"grads.module_filter: down_proj needs {one:,} bytes" in text
    small = (BlockSpec(BLOCKS[0].name, ((2048,),), 0), BlockSpec(BLOCKS[1].name, ((2048,),), 2048))
    projected = estimate_bytes(small, 100, "float32", 16)
    assert f"grads.projection_dim: 2048 needs {projected:,} bytes" in text
    assert f"instead of {need:,} bytes" in text


def test_the_last_bytes_of_a_disk_are_kept_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Usage:
        free = 1000 + RESERVE_BYTES

    monkeypatch.setattr("shutil.disk_usage", lambda path: Usage)
    check_disk(tmp_path, 1000, GradsConfig())
    with pytest.raises(DiskSpaceError, match="does not fit"):
        check_disk(tmp_path, 1001, GradsConfig())


def test_levers_that_are_already_pulled_are_not_offered() -> None:
    offered = levers(GradsConfig(storage_dtype="float16", projection_dim=512), BLOCKS[:1], 10)
    assert [lever.split(":")[0] for lever in offered] == ["grads.projection_dim"]
    assert "256" in offered[0]


def test_the_levers_are_named_even_when_the_blocks_are_not_known() -> None:
    names = {lever.split(":")[0] for lever in levers(GradsConfig())}
    assert names == {"grads.module_filter", "grads.storage_dtype", "grads.projection_dim"}
