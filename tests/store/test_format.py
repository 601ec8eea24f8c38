from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradian.store.disk import estimate_bytes
from gradian.store.format import Layout, canonical_json, checksum_bytes, index_id
from gradian.types import BlockSpec
from tests.store.building import BLOCKS, INPUTS, build

ID = index_id(INPUTS)


def test_the_id_depends_on_values_and_not_on_their_order() -> None:
    assert index_id({"a": 1, "b": [1.5, None]}) == index_id({"b": [1.5, None], "a": 1})
    assert index_id({"a": 1}) != index_id({"a": 2})
    assert index_id({"a": 1}) != index_id({"a": "1"})
    assert index_id({}) == "44136fa355b3678a1146"  # first 20 hex digits of SHA-256 of "{}"


@pytest.mark.parametrize(
    "value", [{1: "a"}, {"a": {2: 3}}, {"a": float("nan")}, {"a": [float("inf")]}, {"a": b"x"}]
)
def test_what_json_cannot_say_has_no_canonical_form(value: object) -> None:
    with pytest.raises((TypeError, ValueError)):
        canonical_json(value)


def test_the_checksum_is_xxh3_64() -> None:
    assert checksum_bytes(b"") == "2d06800538d394c2"


@pytest.mark.parametrize(("n", "chunk_size"), [(1, 1), (11, 4), (12, 4), (3, 100), (5, 1)])
def test_the_estimate_equals_the_files(cache: Path, n: int, chunk_size: int) -> None:
    reader = build(cache, n=n, chunk_size=chunk_size)
    files = reader.path.rglob("*.safetensors")
    assert sum(path.stat().st_size for path in files) == estimate_bytes(BLOCKS, n, "float32", chunk_size)


@settings(max_examples=100, deadline=None)
@given(n=st.integers(1, 10**12), chunk_size=st.integers(1, 10**12), chunk=st.integers(0, 10**12))
def test_no_chunk_number_changes_the_length_of_a_header(n: int, chunk_size: int, chunk: int) -> None:
    layout = Layout(ID, BLOCKS, n, "float16", chunk_size)
    chunk %= layout.n_chunks
    file = layout.chunk(chunk)
    assert file.size == layout.chunk_bytes(chunk)
    assert len(file.header) % 64 == 0
    assert int.from_bytes(file.header[:8], "little") == len(file.header) - 8


@pytest.mark.parametrize(
    "blocks",
    [
        (),
        (BlockSpec("a", ((2,),), 0), BlockSpec("a", ((2,),), 2)),
        (BlockSpec("a", ((2,),), 0), BlockSpec("b", ((2,),), 1)),
        (BlockSpec("", ((2,),), 0),),
        (BlockSpec("__metadata__", ((2,),), 0),),
        (BlockSpec("@examples/loss", ((2,),), 0),),
        (BlockSpec("\ud800", ((2,),), 0),),
        (BlockSpec("x" * 2000, ((2,),), 0),),
        (BlockSpec("a", (), 0),),
        (BlockSpec("a", ((),), 0),),
        (BlockSpec("a", ((3, 0),), 0),),
        (BlockSpec("a", ((-1, -1),), 0),),
        (BlockSpec("a", ((2**32, 2**32),), 0),),
    ],
)
def test_a_layout_refuses_blocks_that_cannot_be(blocks: tuple[BlockSpec, ...]) -> None:
    with pytest.raises(ValueError, match=r"."):
        Layout(ID, blocks, 4, "float32", 2)


@pytest.mark.parametrize(
    "change", [{"index": "../../etc"}, {"n": 0}, {"n": 10**13}, {"chunk_size": 0}, {"dtype": "float64"}]
)
def test_a_layout_refuses_figures_that_cannot_be(change: dict[str, object]) -> None:
    arguments = {"index": ID, "blocks": BLOCKS, "n": 4, "dtype": "float32", "chunk_size": 2, **change}
    with pytest.raises(ValueError, match=r"."):
        Layout(**arguments)  # type: ignore[arg-type]
