from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gradian.store.cache import find_index, index_path, remove_index
from gradian.store.format import index_id
from tests.store.building import INPUTS, build, gradients

ID = index_id(INPUTS)


@pytest.mark.parametrize("name", ["", "../../etc", "/etc", "0" * 19, "G" * 20, "0" * 20 + "\n"])
def test_only_an_index_id_becomes_a_path(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="20 hex digits"):
        index_path(tmp_path, name)


def test_a_whole_index_is_found_without_writing_anything(cache: Path) -> None:
    assert find_index(cache, ID) is None
    assert list(cache.iterdir()) == []
    build(cache)
    index_path(cache, ID).with_name(f"{ID}.lock").unlink()
    found = find_index(cache, ID)
    assert found is not None
    assert found.id == ID
    assert [path.name for path in (cache / "index").iterdir()] == [ID]


def test_removing_an_index_removes_all_of_it_and_spares_open_maps(cache: Path) -> None:
    _, kept = next(build(cache).tiles(0))
    remove_index(cache, ID)
    assert find_index(cache, ID) is None
    assert [path.name for path in (cache / "index").iterdir()] == [f"{ID}.lock"]
    np.testing.assert_array_equal(kept, gradients()[0][:4])
    remove_index(cache, ID)
