from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradian.data import jsontext
from gradian.data.jsontext import Layout, iter_document, iter_lines, layout_of, read_value, sniff
from gradian.errors import DataFormatError

ROW_KEYS = frozenset({"text", "messages"})
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def put(content: str | bytes) -> Path:
        path = tmp_path / "rows.jsonl"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return put


def values(path: Path) -> list[Any]:
    if sniff(path) == "lines":
        return [located.value for located in iter_lines(path)]
    return [located.value for located in iter_document(path, layout_of(path, ROW_KEYS, None))]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ('{"a":1}\n{"a":2}\n', [{"a": 1}, {"a": 2}]),
        ('\ufeff{"a":1}\r\n\r\n{"a":2}', [{"a": 1}, {"a": 2}]),
        ('[{"a":1},{"a":2}]', [{"a": 1}, {"a": 2}]),
        ('\n[\n {"a":1},\n {"a":2}\n]\n', [{"a": 1}, {"a": 2}]),
        ("[]", []),
        ('{"a":1}', [{"a": 1}]),
        ('{\n "text": "x",\n "tags": [{"b": 1}]\n}', [{"text": "x", "tags": [{"b": 1}]}]),
        ('{"version": 1.5, "data": [{"a":1}], "tags": ["x"]}', [{"a": 1}]),
        ('{"data": [\n{"a":1},\n{"a":2}\n]}', [{"a": 1}, {"a": 2}]),
        ('{"a":"\u2028\u0085"}\n{"a":2}', [{"a": "\u2028\u0085"}, {"a": 2}]),
        ('["a"]\n["b"]\n', [["a"], ["b"]]),
        ('"plain"\n', ["plain"]),
        ('{"a":NaN}\n{"a":"\\ud83d\\ude00"}', [{"a": pytest.approx(float("nan"), nan_ok=True)}, {"a": "😀"}]),
        ('{"a":"\\\\ud83d"}\n{"a":1}', [{"a": "\\ud83d"}, {"a": 1}]),
    ],
)
def test_content_decides_how_a_file_is_read(write: Any, content: str, expected: list[Any]) -> None:
    assert values(write(content)) == expected


@pytest.mark.parametrize(
    ("content", "place", "says"),
    [
        ('{"a":1}\n{"a":2,}\n', ":2:7:", "trailing comma before '}'"),
        ('{"a":1}\n{"é":"x\n', ":2:6:", "cut off inside a string"),
        ('{"a":1}\n{"a":\n', ":2:6:", "cut off"),
        ('{"a":1}\n{"a":"\\ud800x"}\n', ":2:7:", "lone surrogate"),
        ('{"a":1}\n{"a":"\\udc00"}\n', ":2:7:", "lone surrogate"),
        ('{"a":1}\n{"a":"\\ud83dx\\ude00"}\n', ":2:7:", "lone surrogate"),
        (b'{"a":1}\n{"a":"\xc3\xa9\xff"}\n', ":2:8:", "byte 0xff is not UTF-8"),
        (b'{"a":1}\n{"a":"\xed\xa0\x80"}\n', ":2:7:", "not UTF-8"),
        ('{"a":1}\n{"a":"\x01"}\n', ":2:7:", "control character"),
        ('{"a":1} {"b":2}\n{"a":1}\n', ":1:9:", "extra data"),
        ('{"a":1}\n' + "[" * 100_000 + "\n", ":2:1:", "nested too deeply"),
        ('{"a":1}\n' + "9" * 5000 + "\n", ":2:1:", "digits"),
        ('[{"a":1},\n {"b":2},]', ":2:9:", "trailing comma before ']'"),
        ('[{"a":1},\n {"b" 2}]', ":2:7:", "':'"),
        ('[{"a":1}\n {"b":2}]', ":2:2:", "expecting ',' or ']'"),
        ('[{"a":1},\n {"b":2}', ":2:9:", "cut off"),
        ('[{"a":1}]\n[{"a":2}', ":2:9:", "cut off"),
        ('[\n{"a":1}]\n[{"a":2}]', ":3:1:", "second JSON value"),
        ('{\n"data": [{"a":"\\ud800"}]}', ":2:16:", "lone surrogate"),
        (b'[{"a":1},\n {"b":"\xff"}]', ":2:8:", "not UTF-8"),
    ],
)
def test_a_fault_is_named_with_line_and_column(
    write: Any, content: str | bytes, place: str, says: str
) -> None:
    path = write(content)
    with pytest.raises(DataFormatError) as caught:
        values(path)
    assert f"{path}{place}" in str(caught.value)
    assert says in str(caught.value)


def test_all_bad_lines_are_counted_and_twenty_shown(write: Any) -> None:
    path = write('{"a":1}\n' + "{bad}\n" * 25)
    with pytest.raises(DataFormatError) as caught:
        values(path)
    assert str(caught.value).count(f"{path}:") - 1 == 20
    assert "25 lines are not valid" in str(caught.value)
    assert "and 5 more" in str(caught.value)
    assert f"{path}:21:" in str(caught.value)


def faults(path: Path) -> list[str]:
    """`line:column: problem` of each fault that the error names, in order."""
    with pytest.raises(DataFormatError) as caught:
        values(path)
    named = (line.strip() for line in str(caught.value).splitlines()[1:])
    return [line.removeprefix(f"{path}:") for line in named if line.startswith(f"{path}:")]


NOT_LOOKED_AT = "What follows was not looked at"


@pytest.mark.parametrize(
    ("content", "places"),
    [
        ('[\n{"a" 1},\n{"b":2},\n{"c":3,},\n{"d":4}\n]', ["2:6", "4:7"]),
        ('[{"a":1},\n {"b" 2},\n {"c" 3}]', ["2:7", "3:7"]),
        ('[\n{"a":\n{"b":2},\n{"c":"x\n]', ["4:1", "4:8"]),
        (
            '[\n  {\n    "a": [\n      {"b" 2},\n      {"c": 3}\n    ]\n  },\n  {\n    "d": }\n]',
            ["4:12", "9:10"],
        ),
        ('{"v": 1,\n"data": [\n{"a" 1},\n{"b" 2}\n], "n": 2}', ["3:6", "4:6"]),
        ('[{"a":"\\ud800"}, {"b":"\\udc00"}, {"c":3}]', ["1:8", "1:24"]),
        (b'[{"a":"\xff"}, {"b":"\xed\xa0\x80"}, {"c":"\xc3\xa9"}]', ["1:8", "1:19"]),
        (b'[\n{"a":1},\n\xff,\n{"b" 2}]', ["3:1", "4:6"]),
        ('[\n{"a":1}\n{"b":2}\n{"c":3},\n]', ["3:1", "4:1", "4:8"]),
        ('[\n{"a" 1},\n{"b":2}', ["2:6", "3:8"]),
        ("[\n" + "[" * 100_000 + ",\n" + '{"a" 1}]', ["2:1", "3:6"]),
    ],
)
def test_a_document_names_every_broken_row_whose_place_can_be_told(
    write: Any, content: str | bytes, places: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for chunk in (1 << 20, 7):
        monkeypatch.setattr(jsontext, "_CHUNK_BYTES", chunk)
        path = write(content)
        assert [":".join(fault.split(":")[:2]) for fault in faults(path)] == places
        with pytest.raises(DataFormatError) as caught:
            values(path)
        assert NOT_LOOKED_AT not in str(caught.value)
        assert f"{len(places)} places are not valid JSON" in str(caught.value)


@pytest.mark.parametrize(
    ("content", "places"),
    [
        ('[{"a" 1}, {"b" 2}]', ["1:7"]),
        ('[\n{"a" 1}, {"b":2},\n{"c":3}] {"d"', ["2:6"]),
        # Without indentation a part of the broken row is taken for rows: what comes of it is not called a fault.
        ('[\n{"m" [\n{"r":1},\n{"r":2}\n]},\n{"m" 1}\n]', ["2:6"]),
    ],
)
def test_where_the_next_row_cannot_be_found_the_error_says_that_it_stopped(
    write: Any, content: str, places: list[str]
) -> None:
    path = write(content)
    assert [":".join(fault.split(":")[:2]) for fault in faults(path)] == places
    with pytest.raises(DataFormatError, match=NOT_LOOKED_AT):
        values(path)


def test_all_broken_rows_of_a_document_are_counted_and_twenty_shown(write: Any) -> None:
    path = write("[" + ",\n".join(['{"a":1}'] + ["{bad}"] * 25) + "]")
    assert len(faults(path)) == 20
    with pytest.raises(DataFormatError, match=r"25 places are not valid(.|\n)*and 5 more"):
        values(path)


BROKEN = [
    '{"s" 1}',
    '{"s": 1,}',
    '{"s": ',
    '{"s": "x',
    '{"s": "\\udfff"}',
    '{"s": "\udcfe"}',
    '{"s": yes}',
    '{"s": 1 2}',
]


@settings(max_examples=50)
@given(
    st.lists(st.dictionaries(TEXTS, TEXTS | st.integers()) | st.sampled_from(BROKEN), min_size=1, max_size=8),
    st.sampled_from(["", "  ", "\t"]),
    st.sampled_from(["\n", "\r\n"]),
)
def test_the_broken_rows_of_an_array_are_named_and_no_others(
    rows: list[dict[str, Any] | str], indent: str, newline: str
) -> None:
    texts = [row if isinstance(row, str) else json.dumps(row, ensure_ascii=False) for row in rows]
    body = f",{newline}".join(indent + text for text in texts)
    wanted = [number for number, row in enumerate(rows, start=2) if isinstance(row, str)]
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(jsontext, "_CHUNK_BYTES", 5)
        path = Path(folder) / "rows.json"
        path.write_bytes(f"[{newline}{body}{newline}]".encode("utf-8", "surrogateescape"))
        if not wanted:
            assert values(path) == rows
            return
        # A row that is cut off is seen to be so on a later line.
        begun = [re.search(r"row that begins on line (\d+)", fault) for fault in faults(path)]
        found = [
            int(match[1]) if match else int(fault.split(":")[0])
            for match, fault in zip(begun, faults(path), strict=True)
        ]
        assert found == wanted


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ('{"a":1}'.encode("utf-16"), "UTF-16 (LE)"),
        ('{"a":1}'.encode("utf-16-be"), "UTF-16 (BE)"),
        ('{"a":1}'.encode("utf-16-le"), "UTF-16 (LE)"),
        ('{"a":1}'.encode("utf-32"), "UTF-32"),
        (b"PAR1....", "Parquet"),
        (b"\x1f\x8b\x08", "gzip"),
        (b"", "empty"),
        (b" \n\xef\xbb\xbf", "not JSON"),
        (b"prompt,completion\na,b\n", "not JSON"),
    ],
)
def test_other_formats_are_called_by_name(write: Any, content: bytes, says: str) -> None:
    with pytest.raises(DataFormatError) as caught:
        sniff(write(content))
    assert says in str(caught.value)


def test_two_lists_are_ambiguous_unless_one_is_named(write: Any) -> None:
    path = write('{"train": [{"a":1}], "test": [{"a":2}]}')
    with pytest.raises(DataFormatError, match=r"'train', 'test'"):
        layout_of(path, ROW_KEYS, None)
    layout = layout_of(path, ROW_KEYS, "test")
    assert [located.value for located in iter_document(path, layout)] == [{"a": 2}]
    with pytest.raises(DataFormatError, match="no list of rows under 'dev'"):
        layout_of(path, ROW_KEYS, "dev")


def test_control_characters_of_a_file_never_reach_the_message(write: Any) -> None:
    with pytest.raises(DataFormatError) as caught:
        values(write('{"a":1}\n{"\x1b[31m\x07": bad}\n'))
    assert "\x1b" not in str(caught.value)


@given(st.lists(st.dictionaries(TEXTS, TEXTS | st.integers() | st.lists(TEXTS), max_size=3), max_size=8))
def test_a_streamed_document_equals_json_loads_at_any_chunk_size(rows: list[Any]) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(jsontext, "_CHUNK_BYTES", 3)
        path = Path(folder) / "rows.json"
        for ascii_only in (True, False):
            path.write_text(
                json.dumps({"v": 12345, "data": rows}, ensure_ascii=ascii_only, indent=1), "utf-8"
            )
            located = list(iter_document(path, Layout("wrapped", "data")))
            assert [item.value for item in located] == rows
            assert [read_value(path, item.start, item.length) for item in located] == rows
