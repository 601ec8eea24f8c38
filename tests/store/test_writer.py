from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

from gradian.errors import CorruptIndexError, DiskSpaceError, IncompleteIndexError, StoreError
from gradian.store.cache import find_index, index_path
from gradian.store.format import StorageDtype, index_id
from gradian.store.reader import IndexReader
from gradian.store.writer import open_writer
from gradian.types import BlockSpec
from tests.store.building import BLOCKS, CHUNK, INPUTS, N, build, digests, gradients, memory_folder, write_pending


@st.composite
def _shapes(draw: st.DrawFn) -> tuple[tuple[BlockSpec, ...], int, int]:
    sizes = draw(st.lists(st.sampled_from([1, 2, 3, 7, 16, 31, 127, 1025]), min_size=1, max_size=4))
    n = draw(st.sampled_from([1, 2, 5, 13, 16, 17]))
    chunk_size = draw(st.sampled_from([1, 2, 5, 16, 17, 1000]))
    offsets = np.cumsum([0, *sizes])
    blocks = tuple(BlockSpec(f"блок.{i}", ((size,),), int(offsets[i])) for i, size in enumerate(sizes))
    return blocks, n, chunk_size


@settings(max_examples=60, deadline=None)
@given(
    shape=_shapes(),
    dtype=st.sampled_from(["float32", "float16"]),
    seed=st.integers(0, 2**32 - 1),
    batch=st.sampled_from([1, 3, 64]),
    max_rows=st.sampled_from([None, 1, 3, 1000]),
)
def test_every_bit_pattern_comes_back(
    shape: tuple[tuple[BlockSpec, ...], int, int],
    dtype: StorageDtype,
    seed: int,
    batch: int,
    max_rows: int | None,
) -> None:
    blocks, n, chunk_size = shape
    rng = np.random.default_rng(seed)
    width = np.dtype(dtype).itemsize
    # Raw bits: NaN payloads, infinities, subnormals and -0.0 all occur.
    values = [
        np.frombuffer(rng.bytes(n * block.size * width), dtype=dtype).reshape(n, block.size)
        for block in blocks
    ]
    values[0] = values[0].copy()
    values[0].flat[:4] = np.array([-0.0, np.nan, -np.inf, np.finfo(dtype).smallest_subnormal])[
        : values[0].size
    ]
    with tempfile.TemporaryDirectory(dir=memory_folder()) as cache:
        with open_writer(cache, {"seed": seed}, blocks, n, dtype, chunk_size) as writer:
            write_pending(writer, values, batch)
            reader = writer.finish()
        again = IndexReader.open(reader.path, verify="checksums")
        for block, stored in enumerate(values):
            tiles = list(again.tiles(block, max_rows))
            assert [first for first, _ in tiles] == list(np.cumsum([0, *(len(t) for _, t in tiles)])[:-1])
            assert all(tile.dtype == np.dtype(dtype) and tile.flags.writeable for _, tile in tiles)
            assert np.concatenate([tile for _, tile in tiles]).tobytes() == stored.tobytes()
            with np.errstate(all="ignore"):
                norms = np.square(stored.astype(np.float64)).sum(axis=1)
            np.testing.assert_allclose(again.sq_norms[:, block], norms, rtol=1e-13)
        np.testing.assert_array_equal(again.loss, np.arange(n) * 0.5)
        np.testing.assert_array_equal(again.supervised_tokens, np.arange(n) + 1)


def test_any_safetensors_reader_opens_a_chunk(tmp_path: Path) -> None:
    reader = build(tmp_path)
    tensors = load_file(reader.path / "chunks/000002.safetensors")
    for block, values in zip(BLOCKS, gradients(), strict=True):
        np.testing.assert_array_equal(tensors[block.name], values[8:])
    np.testing.assert_array_equal(tensors["@examples/row"], [8, 9, 10])
    examples = load_file(reader.path / "examples.safetensors")
    np.testing.assert_array_equal(examples["row"], np.arange(N))
    np.testing.assert_array_equal(examples["sq_norms"], reader.sq_norms)
