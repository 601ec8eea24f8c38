from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
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
    import tempfile

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
