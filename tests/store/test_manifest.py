from __future__ import annotations

import json
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradian.errors import CorruptIndexError, StoreError
from gradian.store.format import canonical_json, checksum_bytes, index_id
from gradian.store.manifest import Manifest
from tests.store.building import build

Values = dict[str, Any]


def signed(values: Any) -> bytes:
    """A manifest text whose checksum is right, whatever it says."""
    return signed_text(canonical_json(values))


def signed_text(text: str) -> bytes:
    rest = f'",{text[1:]}\n'.encode()
    return b'{"checksum":"' + checksum_bytes(rest).encode() + rest


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    return build(tmp_path_factory.mktemp("cache")).manifest


def test_a_manifest_comes_back_as_it_was(manifest: Manifest) -> None:
    assert Manifest.from_json(manifest.to_json()) == manifest
    assert signed(manifest.to_mapping()) == manifest.to_json().encode()
    assert json.loads(manifest.to_json())["id"] == manifest.id


def _set(*path: str | int, to: Any) -> Callable[[Values], None]:
    def change(values: Any) -> None:
        for key in path[:-1]:
            values = values[key]
        values[path[-1]] = to

    return change


def _same_id(values: Values) -> Values:
    return {**values, "id": index_id(values["inputs"])} if isinstance(values.get("inputs"), dict) else values


@pytest.mark.parametrize(
    "change",
    [
        _set("id", to="0" * 20),
        _set("id", to="../../../../etc/passwd"),
        _set("inputs", to=[]),
        _set("inputs", "seed", to=4),
        _set("info", to="x"),
        _set("n", to=12),
        _set("n", to=True),
        _set("n", to=11.0),
        _set("n", to=0),
        _set("n", to=-1),
        _set("n", to=10**30),
        _set("n", to="11"),
        _set("dtype", to="float64"),
        _set("dtype", to=["float32"]),
        _set("chunk_size", to=0),
        _set("chunk_size", to=5),
        _set("chunks", to={}),
        _set("chunks", to=[]),
        _set("chunks", 0, "file", to="../000000.safetensors"),
        _set("chunks", 0, "file", to="/etc/passwd"),
        _set("chunks", 0, "file", to="chunks/000001.safetensors"),
        _set("chunks", 0, "file", to="chunks/000000.safetensors\0"),
        _set("chunks", 0, "rows", to=[0, 5]),
        _set("chunks", 0, "rows", to=[0]),
        _set("chunks", 0, "bytes", to=1),
        _set("chunks", 0, "bytes", to=2**63),
        _set("chunks", 0, "checksum", to="g" * 16),
        _set("chunks", 0, "checksum", to=""),
        _set("chunks", 0, "extra", to=1),
        _set("examples", to=None),
        _set("examples", "file", to="examples"),
        _set("blocks", to=[]),
        _set("blocks", 0, "name", to=7),
        _set("blocks", 0, "name", to="model.layers.0.down_proj"),
        _set("blocks", 0, "shape", to=[[2**62 - 1, 2**62 - 1]]),
        _set("blocks", 0, "shape", to=[[4, 4]] * 100),
        _set("blocks", 0, "shape", to=[16]),
        _set("blocks", 0, "shape", to=[[-4, -4]]),
        _set("blocks", 0, "size", to=17),
        _set("blocks", 1, "offset", to=0),
        _set("blocks", 1, "offset", to=-1),
        _set("unknown", to=1),
    ],
)
def test_a_wrong_value_is_refused_even_under_a_right_checksum(
    manifest: Manifest, change: Callable[[Values], None]
) -> None:
    values = json.loads(json.dumps(manifest.to_mapping()))
    change(values)
    with pytest.raises(CorruptIndexError):
        Manifest.from_json(signed(values))


def test_another_format_version_says_so(manifest: Manifest) -> None:
    with pytest.raises(StoreError, match="another format") as caught:
        Manifest.from_json(signed({**manifest.to_mapping(), "schema_version": 2}))
    assert "--force" in str(caught.value)


def test_a_text_that_reads_the_same_but_is_written_otherwise_is_refused(manifest: Manifest) -> None:
    text = canonical_json(manifest.to_mapping())
    for other in (
        text.replace('"n":11', '"n": 11'),
        text.replace('"n":11', '"n":11,"n":11'),
        text.replace('"n":11', '"n":12,"n":11'),
        text.replace('"lambda":0.1', '"lambda":0.10'),
        text.replace('"lambda":0.1', '"lambda":1e-1'),
        text + " ",
        text.replace('"seed"', '"\\u0073eed"'),
    ):
        assert other != text
        with pytest.raises(CorruptIndexError):
            Manifest.from_json(signed_text(other))


@pytest.mark.parametrize(
    "text",
    [
        '{"a":' + "[" * 500_000 + "]" * 500_000 + "}",
        '{"a":' + '{"b":' * 400_000 + "1" + "}" * 400_000 + "}",
        '{"a":' + "9" * 5_000_000 + "}",
        '{"a":1e' + "9" * 1_000_000 + "}",
        '{"a":[' + "[]," * 10_000_000 + "1]}",
        '{"a":[' + "[]," * 600_000 + "1]}",
        '{"a":[' + "{}," * 600_000 + "1]}",
        '{"a":"' + "\\u0000" * 5_000_000 + '"}',
        '{"n":' + "1" * 33_000_000 + "}",
        '{"a":NaN}',
        '{"a":-Infinity}',
        "{",
        '{"',
        "{}",
        "{]",
        '{"a":"\u00e9"}',
    ],
    ids=range(16),
)
def test_a_text_made_to_exhaust_is_refused_in_bounded_memory(text: str) -> None:
    data = signed_text(text)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(CorruptIndexError):
        Manifest.from_json(data)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 256 << 10  # kB


_json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_value_in_any_place_is_refused_or_read_as_it_is(manifest: Manifest, data: st.DataObject) -> None:
    values = json.loads(json.dumps(manifest.to_mapping()))
    place: Any = values
    while True:
        keys = sorted(place) if isinstance(place, dict) else list(range(len(place)))
        key = data.draw(st.sampled_from(keys))
        if isinstance(place[key], (dict, list)) and place[key] and data.draw(st.booleans()):
            place = place[key]
            continue
        place[key] = data.draw(_json)
        break
    text = signed(_same_id(values) if data.draw(st.booleans()) else values)
    try:
        read = Manifest.from_json(text)
    except StoreError:
        return
    assert read.to_json().encode() == text


def test_the_journal_of_a_whole_index_lists_its_chunks(manifest: Manifest, tmp_path: Path) -> None:
    lines = manifest.journal().decode().splitlines()
    assert [json.loads(line)["file"] for line in lines] == [entry.file for entry in manifest.chunks]
    assert {json.loads(line)["index"] for line in lines} == {manifest.id}
