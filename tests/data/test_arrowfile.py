from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradian.data.arrow import open_arrow
from gradian.data.arrowfile import SLACK_BYTES, read_table, row_bytes
from gradian.data.formats import load_dataset
from gradian.errors import DataFormatError
from tests.stress import arrows

pa = pytest.importorskip("pyarrow")

REFUSED = {
    "nulls": "224 bytes that stand for 1000000000000 rows",
    "nulls in a list": "bytes of values",
    "nulls whose bytes wrap to none": "bytes of values",
    "mappings of nothing": "bytes of values",
    "lists of nothing": "bytes of values",
    "one run": "rows",
    "runs in a list": "'text' has the type struct<a: large_list<item: run_end_encoded|'text' has the type run_end",
    "compressed": "a compressed Arrow file",
    "compressed dictionary": "a compressed Arrow file",
    "views of one text": "'text' has the type string_view",
    "views of one list": "'text' has the type list_view",
    "rows of one text": "bytes of values",
    "batches of one dictionary": "bytes of values",
    "dictionary that grows": "grows from batch to batch",
    "columns of one text": "share their bytes",
    "names of one text": "share their names",
}


def folder(tmp_path: Path, data: bytes, indices: bytes | None = None) -> Path:
    state: dict[str, Any] = {"_data_files": [{"filename": "data.arrow"}]}
    (tmp_path / "data.arrow").write_bytes(data)
    if indices is not None:
        (tmp_path / "indices.arrow").write_bytes(indices)
        state["_indices_files"] = [{"filename": "indices.arrow"}]
    (tmp_path / "state.json").write_text(json.dumps(state))
    return tmp_path


@pytest.mark.parametrize("name", arrows.MAKERS)
def test_a_small_file_that_stands_for_a_great_deal_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataFormatError, match=REFUSED[name]) as caught:
        load_dataset(folder(tmp_path, arrows.MAKERS[name]()))
    assert caught.value.where is not None
    assert caught.value.where.startswith(str(tmp_path))
    assert "save_to_disk" in str(caught.value.fix)


def test_a_row_that_indices_repeat_counts_each_time(tmp_path: Path) -> None:
    data = arrows.stream(pa.table({"text": ["x" * 1_000_000, "y"]}))
    repeated = arrows.stream(pa.table({"indices": pa.array([0] * 1_000, pa.int64())}))
    with pytest.raises(DataFormatError, match="stand for 1000004000 bytes"):
        load_dataset(folder(tmp_path, data, repeated))
    others = arrows.stream(pa.table({"indices": pa.array([1] * 1_000 + [0], pa.int64())}))
    assert len(load_dataset(folder(tmp_path, data, others))) == 1_001


def test_a_file_that_is_named_twice_is_refused(tmp_path: Path) -> None:
    path = folder(tmp_path, arrows.stream(pa.table({"text": ["a"]})))
    (path / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data.arrow"}] * 2}))
    with pytest.raises(DataFormatError, match=r"names 'data\.arrow' twice"):
        load_dataset(path)


@pytest.mark.parametrize("name", ["data.arrow", "state.json"])
def test_a_pipe_in_the_folder_is_refused_and_not_waited_for(tmp_path: Path, name: str) -> None:
    (tmp_path / "train").mkdir()
    path = folder(tmp_path / "train", b"")
    (path / name).unlink()
    os.mkfifo(path / name)
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train"]}')
    with pytest.raises(DataFormatError, match="not a plain file"):
        load_dataset(f"{tmp_path}::train")


def test_a_state_that_is_no_state_is_not_read_into_memory(tmp_path: Path) -> None:
    path = folder(tmp_path, b"")
    with (path / "state.json").open("r+b") as file:
        file.truncate(1 << 40)
    with pytest.raises(DataFormatError, match="at most 16777216 are read"):
        load_dataset(path)


def test_what_datasets_writes_is_read_whatever_its_columns(tmp_path: Path) -> None:
    table = pa.table(
        {
            "text": ["a", None, "c", "é" * 300],
            "large": pa.array(["a", "b", None, "d"], pa.large_string()),
            "bytes": pa.array([b"\xff", b"", None, b"x"], pa.binary()),
            "fixed": pa.array([b"ab", None, b"cd", b"ef"], pa.binary(2)),
            "nothing": pa.nulls(4),
            "class": pa.array(["x", "y", None, "x"]).dictionary_encode(),
            "no class": pa.array([None] * 4, pa.string()).dictionary_encode(),
            "truth": [True, False, None, True],
            "half": pa.array([np.float16(0.5)] * 4, pa.float16()),
            "list": [[1], [], None, [2, 3]],
            "large list": pa.array([[1], [], None, [2, 3]], pa.large_list(pa.int8())),
            "vector": pa.array([[1, 2], None, [3, 4], [5, 6]], pa.list_(pa.int8(), 2)),
            "vectors of text": pa.array([["a"], None, ["b"], ["c"]], pa.list_(pa.string(), 1)),
            "empty vector": pa.array([[]] * 4, pa.list_(pa.int8(), 0)),
            "messages": [[{"role": "user", "content": "hi", "tools": None}], [], None, []],
            "map": pa.array([[("k", 1)], [], None, [("l", 2)]], pa.map_(pa.string(), pa.int64())),
            "nested": [{"a": {"b": [["x"], []]}}, None, {"a": None}, {"a": {"b": None}}],
        }
    )
    for rows in (table, table.slice(1), table.slice(0, 0)):
        for write in (pa.ipc.new_stream, pa.ipc.new_file):
            with pa.OSFile(str(tmp_path / "data.arrow"), "wb") as sink, write(sink, rows.schema) as writer:
                writer.write_table(rows, max_chunksize=2)
            (tmp_path / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data.arrow"}]}))
            found = open_arrow(tmp_path)
            assert list(found) == rows.to_pylist()
            assert [found.row(place) for place in range(found.n_rows)] == rows.to_pylist()


def test_a_dictionary_and_columns_of_nothing_may_be_larger_than_their_file(tmp_path: Path) -> None:
    n = 20_000
    prompts = pa.array(["Answer in one word. " * 30] * n).dictionary_encode()
    nothing = {f"empty {place}": pa.nulls(n) for place in range(10)}
    table = pa.table({"prompt": prompts, "completion": ["yes"] * n, **nothing})
    path = folder(tmp_path, arrows.stream(table))
    rows = open_arrow(path)
    assert rows.n_rows == n
    assert rows.n_bytes > 5 * (path / "data.arrow").stat().st_size
    assert sum(1 for _ in rows) == n


def test_rows_weigh_what_their_values_take(tmp_path: Path) -> None:
    texts = pa.DictionaryArray.from_arrays(pa.array([1, 0, None], pa.int8()), pa.array(["x" * 50, "y" * 70]))
    table = pa.table(
        {
            "texts": texts,
            "lists": pa.array([["a" * 9], [], ["b", "c"]]),
            "numbers": pa.array([[1, 2, 3], [], [4]], pa.list_(pa.int32())),
            "mapping": [{"a": 1}, {"a": 2}, {"a": 3}],
        }
    )
    path = folder(tmp_path, arrows.stream(table)) / "data.arrow"
    mapping = 64 + 8
    assert row_bytes(read_table(path)).tolist() == [
        74 + 4 + 13 + 4 + 12 + mapping,
        54 + 4 + 0 + 4 + 0 + mapping,
        54 + 4 + 10 + 4 + 4 + mapping,
    ]


def test_a_file_within_the_slack_is_read_and_one_beyond_it_is_not(tmp_path: Path) -> None:
    # Eight bytes a null, in a list of its own.
    for count, fits in ((SLACK_BYTES // 8 - 1_000, True), (SLACK_BYTES // 8 + 1_000, False)):
        lists = pa.ListArray.from_arrays(pa.array([0, count], pa.int32()), pa.nulls(count))
        path = folder(tmp_path, arrows.stream(pa.table({"text": lists})))
        if fits:
            assert len(open_arrow(path).row(0)["text"]) == count
        else:
            with pytest.raises(DataFormatError, match="bytes of values"):
                open_arrow(path)
