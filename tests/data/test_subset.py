from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradian.data import subset
from gradian.data.formats import load_dataset
from gradian.data.subset import check_target, write_subset
from gradian.errors import DataError, DataFormatError
from gradian.types import Example

CASES = Path(__file__).resolve().parents[1] / "fixtures" / "cases"
ROWS = [{"prompt": f"q{i}", "completion": "é" * i or "a"} for i in range(6)]

TEXTS = st.text(max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXTS, inner, max_size=2),
    max_leaves=4,
)
TURNS = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant", "gpt"]), "content": TEXTS | VALUES}),
    max_size=3,
)
SHAPES: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.fixed_dictionaries({"messages": TURNS}),
    st.fixed_dictionaries({"conversations": TURNS, "cluster_id": VALUES}),
    st.fixed_dictionaries({"prompt": TEXTS | VALUES, "completion": TEXTS}),
    st.fixed_dictionaries({"question": TEXTS, "answer": TEXTS, "cluster": VALUES}),
    st.fixed_dictionaries({"instruction": TEXTS, "input": TEXTS, "output": TEXTS}),
    st.fixed_dictionaries({"input": TEXTS, "output": TEXTS}),
    st.fixed_dictionaries({"text": TEXTS}),
)


@st.composite
def documents(draw: st.DrawFn) -> tuple[bytes, list[dict[str, Any]], str]:
    """A file of any layout that is read, its rows, and what follows its path."""
    rows = draw(st.lists(SHAPES, min_size=2, max_size=6))
    dump = {"ensure_ascii": draw(st.booleans()), "indent": draw(st.sampled_from([None, 1]))}
    kind = draw(st.sampled_from(["lines", "array", "wrapped", "one of two lists"]))
    part = ""
    if kind == "lines":
        end = draw(st.sampled_from(["\n", "\r\n", "\n\n"]))
        lines = [json.dumps(row, ensure_ascii=dump["ensure_ascii"]) for row in rows]
        text = end.join(lines) + draw(st.sampled_from(["", end]))
    elif kind == "array":
        text = json.dumps(rows, **dump)
    elif kind == "wrapped":
        text = json.dumps({"version": [1, 2], "data": rows, "after": {"rows": "["}}, **dump)
    else:
        text = json.dumps({"a": [{"x": 1}], "b": rows}, **dump)
        part = "::b"
    mark = draw(st.sampled_from([b"", b"\xef\xbb\xbf"]))
    return mark + text.encode(), rows, part


def contents(examples: Any) -> list[Example]:
    return [replace(e, id=e.id.rpartition("-")[0], position=0) for e in examples]


def jsonl(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")
    return path


@given(documents(), st.data())
def test_what_is_written_reads_back_as_exactly_the_rows_that_stay(
    tmp_path_factory: pytest.TempPathFactory, document: tuple[bytes, list[dict[str, Any]], str], data: Any
) -> None:
    raw, rows, part = document
    folder = tmp_path_factory.mktemp("subset")
    source = folder / "train.json"
    source.write_bytes(raw)
    drop = data.draw(st.sets(st.integers(0, len(rows) - 1), max_size=len(rows) - 1))
    before = load_dataset(f"{source}{part}").examples

    written = write_subset(f"{source}{part}", folder / "kept.json", drop)

    kept = [row for i, row in enumerate(before) if i not in drop]
    assert contents(load_dataset(written.source).examples) == contents(kept)
    assert written.n == len(kept)
    assert source.read_bytes() == raw
    assert sorted(path.name for path in folder.iterdir()) == ["kept.json", "train.json"]
    if not drop:
        assert written.path.read_bytes() == raw


def test_lines_that_stay_keep_every_byte(tmp_path: Path) -> None:
    lines = [
        b'{ "text":"a", "n": 1.50 }\r\n',
        b"\r\n",
        '{"text": "é\\u00e9"}\n'.encode(),
        b'{"text":"b"}  \n',
        b'{"text":"c"}',
    ]
    source = tmp_path / "train.jsonl"
    source.write_bytes(b"\xef\xbb\xbf" + b"".join(lines))
    write_subset(source, tmp_path / "kept.jsonl", {0, 2})
    assert (tmp_path / "kept.jsonl").read_bytes() == b"\xef\xbb\xbf" + lines[1] + lines[2] + lines[4]


@pytest.mark.parametrize(
    ("drop", "kept"),
    [
        ({0}, '{"k": 0,\n "data": [{"text": "b"} , {"text": "c"}\n]}\n'),
        ({1}, '{"k": 0,\n "data": [{"text":"a"} , {"text": "c"}\n]}\n'),
        ({1, 2}, '{"k": 0,\n "data": [{"text":"a"}\n]}\n'),
    ],
)
def test_a_document_keeps_everything_but_the_rows_and_their_commas(
    tmp_path: Path, drop: set[int], kept: str
) -> None:
    source = tmp_path / "train.json"
    source.write_text('{"k": 0,\n "data": [{"text":"a"},{"text": "b"} , {"text": "c"}\n]}\n', newline="")
    write_subset(source, tmp_path / "kept.json", drop)
    assert (tmp_path / "kept.json").read_text() == kept


@pytest.mark.parametrize(
    "file",
    [
        "01-bom-crlf-jsonl/train.jsonl",
        "05-json-wrapped-data/train.json",
        "06-wrong-extension/really_array.jsonl",
        "06-wrong-extension/really_jsonl.json",
        "08-mixed-row-shapes/train.jsonl",
        "09-sharegpt-basic/train.json",
        "12-null-content-tool-calls/train.jsonl",
        "15-nan-null-alpaca/train.jsonl",
        "28-very-long-line/train.jsonl",
    ],
)
def test_the_recorded_files_lose_one_row_and_nothing_else(tmp_path: Path, file: str) -> None:
    before = load_dataset(CASES / file).examples
    for row in range(len(before)):
        if len(before) > 1:
            written = write_subset(CASES / file, tmp_path / "kept", {row})
            kept = [example for example in before if example.position != row]
            assert contents(load_dataset(written.source).examples) == contents(kept)


def test_rows_of_a_save_to_disk_folder_become_lines(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    rows = [
        {"messages": [{"role": "user", "content": f"q{i}"}, {"role": "assistant", "content": "é"}], "x": None}
        for i in range(4)
    ]
    rows[1]["x"] = float("nan")
    folder = tmp_path / "saved"
    folder.mkdir()
    table = pa.Table.from_pylist(rows)
    with pa.OSFile(str(folder / "data.arrow"), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data.arrow"}]}))

    written = write_subset(folder, tmp_path / "kept.jsonl", {0, 3})

    lines = (tmp_path / "kept.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [{**rows[1], "x": None}, rows[2]]
    assert contents(load_dataset(written.source)) == contents(load_dataset(folder).examples[1:3])
    with pytest.raises(DataError, match="inside the dataset"):
        write_subset(folder, folder / "kept.jsonl", {0})


def test_a_value_that_json_has_no_word_for_is_refused_where_it_would_change_a_row(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    import datetime

    folder = tmp_path / "saved"
    folder.mkdir()
    table = pa.Table.from_pylist([{"prompt": datetime.date(2020, 1, i), "completion": "a"} for i in (1, 2)])
    with pa.OSFile(str(folder / "data.arrow"), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data.arrow"}]}))
    with pytest.raises(DataFormatError, match="read as something else"):
        write_subset(folder, tmp_path / "kept.jsonl", {0})
    assert not (tmp_path / "kept.jsonl").exists()


def test_what_is_left_is_not_written_when_it_would_read_as_something_else(tmp_path: Path) -> None:
    # One line alone is a document, and this one a document that wraps a list.
    source = jsonl(tmp_path / "train.jsonl", [{"text": "a"}, {"odd": [{"text": "b"}, {"text": "c"}]}])
    old = tmp_path / "kept.jsonl"
    old.write_text("old")
    with pytest.raises(DataFormatError, match="read as something else"):
        write_subset(source, old, {0})
    assert old.read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept.jsonl", "train.jsonl"]


def test_the_dataset_itself_is_never_overwritten_under_any_of_its_names(tmp_path: Path) -> None:
    source = jsonl(tmp_path / "train.jsonl", ROWS)
    raw = source.read_bytes()
    (tmp_path / "link.jsonl").symlink_to(source)
    (tmp_path / "hard.jsonl").hardlink_to(source)
    for name in ("train.jsonl", "link.jsonl", "hard.jsonl", "../" + tmp_path.name + "/train.jsonl"):
        with pytest.raises(DataError, match="overwrite the dataset"):
            write_subset(source, tmp_path / name, {0})
    assert source.read_bytes() == raw


def test_a_place_that_cannot_be_written_is_refused_before_any_work(tmp_path: Path) -> None:
    source = jsonl(tmp_path / "train.jsonl", ROWS)
    with pytest.raises(DataError, match="this is a folder"):
        check_target(source, tmp_path)
    with pytest.raises(DataError, match="cannot be written"):
        check_target(source, source / "kept.jsonl")
    check_target(source, tmp_path / "new" / "kept.jsonl")
    assert list((tmp_path / "new").iterdir()) == []


@pytest.mark.parametrize("row", [-1, 3])
def test_a_row_that_is_not_there_cannot_be_dropped(tmp_path: Path, row: int) -> None:
    source = tmp_path / "rows.jsonl"
    source.write_text("".join(f'{{"prompt": "{i}", "completion": "a"}}\n' for i in range(3)))
    with pytest.raises(IndexError):
        write_subset(source, tmp_path / "kept.jsonl", [0, row])
    assert not (tmp_path / "kept.jsonl").exists()


def test_dropping_every_row_is_refused(tmp_path: Path) -> None:
    source = jsonl(tmp_path / "train.jsonl", ROWS)
    with pytest.raises(DataError, match="no row would stay"):
        write_subset(source, tmp_path / "kept.jsonl", range(len(ROWS)))


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = jsonl(tmp_path / "train.jsonl", ROWS)
    old = tmp_path / "kept.jsonl"
    old.write_text("old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(subset.os, "fsync", full)
    with pytest.raises(DataError, match="No space left on device"):
        write_subset(source, old, {0})
    assert old.read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept.jsonl", "train.jsonl"]
