from __future__ import annotations

import json
import os
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from gradian import supported
from gradian.data import formats
from gradian.data.formats import load_dataset
from gradian.data.ids import dataset_hash, example_id
from gradian.errors import DataError, DataFormatError, MissingExtraError

ROWS = [{"prompt": f"q{i}", "completion": "é" * i or "a"} for i in range(7)]


def jsonl(path: Path, rows: list[Any]) -> Path:
    path.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in rows), "utf-8")
    return path


def saved(folder: Path, rows: list[Any], **state: Any) -> Path:
    """A save_to_disk folder as `datasets` lays it out."""
    pa = pytest.importorskip("pyarrow")
    folder.mkdir(parents=True)
    write_arrow(folder / "data.arrow", pa.Table.from_pylist(rows))
    files = {"_data_files": [{"filename": "data.arrow"}], **state}
    (folder / "state.json").write_text(json.dumps(files))
    return folder


def write_arrow(path: Path, table: Any) -> None:
    import pyarrow as pa

    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)


def test_ids_count_rows_and_not_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "x"}\n\n{"text": "x"}\n')
    row = {"text": "x"}
    assert [e.id for e in load_dataset(path)] == [example_id(row, 0), example_id(row, 1)]


@pytest.mark.parametrize("kind", ["lines", "array", "wrapped", "arrow"])
def test_a_large_source_gives_the_same_examples_from_the_file(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rows.json"
    if kind == "lines":
        jsonl(path, ROWS)
    elif kind == "arrow":
        path = saved(tmp_path / "ds", ROWS)
    else:
        path.write_text(json.dumps(ROWS if kind == "array" else {"data": ROWS}, indent=1), "utf-8-sig")
    small = load_dataset(path)
    monkeypatch.setattr(formats, "IN_MEMORY_BYTES", 1)
    large = load_dataset(path)
    assert isinstance(small.examples, tuple)
    assert not isinstance(large.examples, tuple)
    assert tuple(large) == small.examples
    assert dataset_hash(large) == dataset_hash(small)
    assert (large.examples[-1], large.examples[1:3]) == (small.examples[-1], small.examples[1:3])
    assert (large.shapes, large.findings) == (small.shapes, small.findings)
    with pytest.raises(IndexError):
        large.examples[len(ROWS)]


def test_a_row_that_changed_after_loading_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(formats, "IN_MEMORY_BYTES", 1)
    path = jsonl(tmp_path / "a.jsonl", ROWS)
    dataset = load_dataset(path)
    path.write_text(path.read_text().replace("q3", "q9"))
    assert dataset.examples[2].messages[0].content == "q2"
    with pytest.raises(DataFormatError, match="row 4 changed since the file was loaded"):
        dataset.examples[3]


def test_a_large_file_is_not_held_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "IN_MEMORY_BYTES", 1)
    path = jsonl(tmp_path / "a.jsonl", [{"text": f"{i} " + "x" * 4000} for i in range(1000)])
    tracemalloc.start()
    try:
        dataset = load_dataset(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(dataset) == 1000
    assert peak < path.stat().st_size / 8


def test_findings_list_row_numbers_and_ids_in_order(tmp_path: Path) -> None:
    dataset = load_dataset(jsonl(tmp_path / "a.jsonl", [{"x": 1}, {"text": "t"}, {"y": 2}]))
    (finding,) = dataset.findings
    assert finding.title == "Rows that match no known shape, taken as raw text: 2 of 3"
    assert finding.example_ids == (dataset.examples[0].id, dataset.examples[2].id)
    assert finding.figures["rows"] == [1, 3]
    assert dataset.notes == ("Row shapes: unknown 2, text 1.",)


def test_a_missing_path_says_that_hub_ids_are_not_resolved(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="Hub dataset ids are not resolved"):
        load_dataset(tmp_path / "nothing.jsonl")


@pytest.mark.parametrize("name", ["x" * 5000, "a\0b", "a::" + "x" * 5000])
def test_a_name_that_no_file_can_have_is_a_missing_path(name: str) -> None:
    with pytest.raises(DataError, match="no such file or folder"):
        load_dataset(name)


def test_a_pipe_or_a_device_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "rows.jsonl")
    for path in (tmp_path / "rows.jsonl", Path("/dev/zero")):
        with pytest.raises(DataError, match="neither a file nor a folder"):
            load_dataset(path)


def test_a_file_without_rows_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("[]")
    with pytest.raises(DataFormatError, match="no rows"):
        load_dataset(path)


def test_a_part_of_a_file_of_lines_is_an_error(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "a.jsonl", ROWS)
    with pytest.raises(DataFormatError, match="no part 'train'"):
        load_dataset(f"{path}::train")


def test_an_indices_mapping_is_honoured(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    folder = saved(tmp_path / "ds", ROWS, _indices_data_files=[{"filename": "indices.arrow"}])
    write_arrow(folder / "indices.arrow", pa.table({"indices": pa.array([5, 0, 5], pa.uint64())}))
    assert [e.messages[0].content for e in load_dataset(folder)] == ["q5", "q0", "q5"]
    write_arrow(folder / "indices.arrow", pa.table({"indices": pa.array([7], pa.uint64())}))
    with pytest.raises(DataFormatError, match="past the last row"):
        load_dataset(folder)


@pytest.mark.parametrize("split", ["dev", "../train"])
def test_an_unknown_split_lists_the_known_ones(tmp_path: Path, split: str) -> None:
    saved(tmp_path / "ds" / "train", ROWS)
    (tmp_path / "ds" / "dataset_dict.json").write_text('{"splits": ["train", "../train"]}')
    with pytest.raises(DataFormatError, match="no split"):
        load_dataset(f"{tmp_path}/ds::{split}")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"_data_files": []}, "names no data files"),
        ({"_data_files": [{"filename": "../data.arrow"}]}, "no plain file name"),
        ({"_data_files": [{"filename": "gone.arrow"}]}, "not there"),
        ({"_data_files": [{"filename": "state.json"}]}, "not a whole Arrow file"),
    ],
)
def test_a_broken_folder_names_its_fault(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    folder = saved(tmp_path / "ds", ROWS, **change)
    with pytest.raises(DataFormatError, match=says):
        load_dataset(folder)


def test_a_cut_arrow_file_is_an_error(tmp_path: Path) -> None:
    folder = saved(tmp_path / "ds", ROWS)
    whole = (folder / "data.arrow").read_bytes()
    (folder / "data.arrow").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataFormatError, match=r"data\.arrow"):
        load_dataset(folder)


def test_a_plain_folder_lists_the_files_that_could_be_meant(tmp_path: Path) -> None:
    jsonl(tmp_path / "a.jsonl", ROWS)
    with pytest.raises(DataFormatError, match=r"a\.jsonl"):
        load_dataset(tmp_path)


def test_without_pyarrow_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = saved(tmp_path / "ds", ROWS)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match=r"gradian-ml\[train\]"):
        load_dataset(folder)


def test_a_pyarrow_that_runs_pickles_in_arrow_files_reads_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = saved(tmp_path / "ds", ROWS)
    monkeypatch.setattr(supported, "installed_version", lambda _: "13.0.0")
    with pytest.raises(MissingExtraError, match=r"pyarrow 13\.0\.0 runs pickles"):
        load_dataset(folder)
