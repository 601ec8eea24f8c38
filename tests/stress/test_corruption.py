"""A damaged index never gives a score. What is damaged and how, and who reads it, is in `corruption.py`."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from gradian.cli.main import app
from gradian.errors import StoreError
from gradian.store.gram_cache import DERIVED_FOLDER, GRAM_FILE, write_gram
from gradian.store.reader import IndexReader
from gradian.store.writer import open_writer
from tests.store.building import write_pending
from tests.stress import corruption


@pytest.mark.parametrize("name", ["reference", "native"])
def test_no_damage_to_an_index_goes_by_unnoticed(name: str) -> None:
    found = corruption.run(name, bits=1, stride=29)
    assert found["first_missed"] == []
    assert found["differ"] == []
    assert set(found["of"]["scenes"]) == {"refused"}
    assert set(found["of"]["scenes of what is derived"]) == {"same"}
    assert found["refused"] > 250
    assert found["same"] > 70
    assert found["resumed"] > 60


def test_the_harness_itself_notices_scores_of_damaged_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(IndexReader, "verify", lambda self: None)
    found = corruption.run("reference", bits=1, stride=1000)
    assert "two rows of a chunk swapped" in found["first_missed"]


def unfinished(folder: Path) -> Path:
    """An index whose build was stopped after both chunks."""
    path = corruption.build(folder / "cache")
    (path / "manifest.json").unlink()
    return path


def resume(path: Path) -> None:
    with open_writer(
        path.parents[1], corruption.INPUTS, corruption.BLOCKS, corruption.N, "float16", corruption.CHUNK
    ) as writer:
        write_pending(writer, corruption.rows(0))
        writer.finish()


JOURNALS: dict[str, Callable[[Path, Path], object]] = {
    "a pipe": lambda journal, _: os.mkfifo(journal),
    "a link": lambda journal, outside: journal.symlink_to(outside / "precious.safetensors"),
    "a folder": lambda journal, _: journal.mkdir(),
}


@pytest.mark.parametrize("name", ["building.jsonl", "journal.jsonl"])
@pytest.mark.parametrize("kind", JOURNALS)
def test_a_journal_that_is_no_file_is_an_error_and_neither_waited_for_nor_followed(
    tmp_path: Path, kind: str, name: str
) -> None:
    path, outside = unfinished(tmp_path), tmp_path / "outside"
    outside.mkdir()
    (outside / "precious.safetensors").write_bytes(b"precious")
    (path / name).unlink(missing_ok=True)
    JOURNALS[kind](path / name, outside)
    with pytest.raises(StoreError, match=name):
        resume(path)
    assert (outside / "precious.safetensors").read_bytes() == b"precious"


def test_a_build_does_not_follow_a_link_in_place_of_its_chunks_and_removes_nothing_there(
    tmp_path: Path,
) -> None:
    path, outside = unfinished(tmp_path), tmp_path / "models"
    shutil.rmtree(path / "chunks")
    outside.mkdir()
    (outside / "model.safetensors").write_bytes(b"precious")
    (path / "chunks").symlink_to(outside)
    with pytest.raises(StoreError, match="chunks"):
        resume(path)
    assert os.listdir(outside) == ["model.safetensors"]


def test_gram_matrices_are_not_written_through_a_link(tmp_path: Path) -> None:
    path, outside = corruption.build(tmp_path / "cache"), tmp_path / "outside"
    (path / DERIVED_FOLDER).rename(outside)
    (outside / GRAM_FILE).unlink()
    before = sorted(os.listdir(outside))
    (path / DERIVED_FOLDER).symlink_to(outside)
    with pytest.raises(StoreError, match=DERIVED_FOLDER):
        write_gram(
            IndexReader.open(path), lambda block: np.zeros((4, 4), dtype=np.float32), lambda message: None
        )
    assert sorted(os.listdir(outside)) == before


@pytest.mark.parametrize("name", corruption.INDEX_FILES)
def test_show_index_exits_with_2_and_names_the_file(tmp_path: Path, name: str) -> None:
    path = corruption.build(tmp_path)
    data = bytearray((path / name).read_bytes())
    data[len(data) // 2] ^= 4
    (path / name).write_bytes(data)
    shown = CliRunner().invoke(app, ["show-index", str(path), "--verify"])
    assert shown.exit_code == 2
    assert Path(name).name in shown.output.replace("\n", "")
