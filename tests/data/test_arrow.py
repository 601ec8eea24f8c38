from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gradian.data.arrow import open_arrow
from gradian.data.formats import load_dataset
from gradian.errors import DataFormatError
from tests.stress.arrows import stream

pa = pytest.importorskip("pyarrow")


def folder(tmp_path: Path, *tables: Any, indices: Any = None) -> Path:
    names = [f"data-{number}.arrow" for number in range(len(tables))]
    state: dict[str, Any] = {"_data_files": [{"filename": name} for name in names]}
    for name, table in zip(names, tables, strict=True):
        (tmp_path / name).write_bytes(stream(table))
    if indices is not None:
        (tmp_path / "indices.arrow").write_bytes(stream(pa.table({"indices": indices})))
        state["_indices_files"] = [{"filename": "indices.arrow"}]
    (tmp_path / "state.json").write_text(json.dumps(state))
    return tmp_path


def twins() -> Any:
    fields = [pa.field("x", pa.string()), pa.field("x", pa.string())]
    return pa.StructArray.from_arrays([pa.array(["a"]), pa.array(["b"])], fields=fields)


IMPOSSIBLE = {
    "a time in the year 36534877030": lambda: pa.array([2**60], pa.timestamp("s")),
    "a time in no known zone": lambda: pa.array([1], pa.timestamp("us", tz="No/Where")),
    "a time in a zone that is a folder": lambda: pa.array([1], pa.timestamp("us", tz="America")),
    "a time in a zone outside": lambda: pa.array([1], pa.timestamp("us", tz="../../etc/passwd")),
    "a day in the year 2941764": lambda: pa.array([2**30], pa.int32()).cast(pa.date32()),
    "a duration of the world": lambda: pa.array([2**62], pa.duration("s")),
    "a mapping with a key twice": twins,
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_a_value_that_python_has_not_names_its_file_row_and_column(tmp_path: Path, name: str) -> None:
    bad = IMPOSSIBLE[name]()
    good = pa.table({"text": ["a", "b"], "extra": pa.nulls(2, bad.type)})
    path = folder(tmp_path, good, pa.table({"text": ["c"], "extra": bad}))
    with pytest.raises(DataFormatError, match="row 3: column 'extra': Python has no such value") as caught:
        load_dataset(path)
    assert caught.value.where == str(path / "data-1.arrow")
    assert "drop the column" in str(caught.value.fix)
    with pytest.raises(DataFormatError, match="row 3: column 'extra'"):
        open_arrow(path).row(2)
    assert open_arrow(path).row(1)["text"] == "b"


def test_all_such_rows_of_a_batch_are_named_up_to_twenty(tmp_path: Path) -> None:
    days = pa.array([0] + [2**30] * 30, pa.int32()).cast(pa.date32())
    with pytest.raises(DataFormatError, match=r"rows 2, 3, .*, 21, \.\.\.: column 'day'"):
        load_dataset(folder(tmp_path, pa.table({"text": ["a"] * 31, "day": days})))


def test_such_a_row_is_named_by_its_place_in_the_dataset_and_the_file_that_it_lies_in(tmp_path: Path) -> None:
    days = pa.array([0, 2**30], pa.int32()).cast(pa.date32())
    bad = pa.table({"text": ["b", "c"], "day": days})
    path = folder(tmp_path, bad, bad.slice(0, 1), indices=pa.array([2, 0, 1], pa.uint64()))
    with pytest.raises(DataFormatError, match="row 3: column 'day'") as caught:
        load_dataset(path)
    assert caught.value.where == str(path / "data-0.arrow")
    assert open_arrow(path).row(0)["text"] == "b"


def test_a_row_behind_the_first_batch_is_named_by_its_place(tmp_path: Path) -> None:
    days = pa.array([0] * 1_500 + [2**30], pa.int32()).cast(pa.date32())
    with pytest.raises(DataFormatError, match="row 1501: column 'day'"):
        load_dataset(folder(tmp_path, pa.table({"text": ["a"] * 1_501, "day": days})))
