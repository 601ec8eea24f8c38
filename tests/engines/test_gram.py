from __future__ import annotations

import errno
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

from gradian.engines import EngineSettings
from gradian.engines.gram import building_pays, gram_matrices
from gradian.errors import StoreError
from gradian.progress import Advance, NullProgress
from gradian.query.scorer import QueryGradients, score_index
from gradian.store.gram_cache import CHECKSUM_FILE, DERIVED_FOLDER, GRAM_FILE, find_gram
from gradian.store.reader import IndexReader
from gradian.store.writer import open_writer
from gradian.types import BlockSpec
from tests.store.building import gradients, write_pending
from tests.tolerances import DATAINF, EPS

# Wide enough beside 20 rows that `auto` takes their Gram matrices for small.
BLOCKS = (BlockSpec("a", ((300,),), 0), BlockSpec("b", ((7, 60), (3, 7)), 300))
N, MANY = 20, 40


@pytest.fixture
def reader(tmp_path: Path) -> IndexReader:
    with open_writer(tmp_path, {"gram": 1}, BLOCKS, N, "float32", 6) as writer:
        write_pending(writer, gradients(BLOCKS, N))
        return writer.finish()


def queries(m: int) -> QueryGradients:
    generator = torch.Generator().manual_seed(1)
    blocks = tuple(torch.randn(m, block.size, generator=generator) for block in BLOCKS)
    return QueryGradients(tuple(f"q{i}" for i in range(m)), blocks)


def test_building_pays_from_about_a_quarter_of_the_rows_in_queries() -> None:
    # n / 2 products against 2 a query; reads matter for few rows only.
    for n in (400, 4000):
        least = next(m for m in range(n) if building_pays(n, 8, 8 * 65536, 4, queries=m))
        assert n / 4 * 0.9 <= least <= n / 4 * 1.1
    assert building_pays(100, 8, 8 * 65536, 4, queries=1) is False


@pytest.mark.parametrize(("item_bytes", "largest"), [(4, 102), (2, 51)])
def test_matrices_that_are_not_small_against_the_store_are_not_built(item_bytes: int, largest: int) -> None:
    assert building_pays(largest, 3, 3 * 1024, item_bytes, queries=10**6)
    assert not building_pays(largest + 1, 3, 3 * 1024, item_bytes, queries=10**6)


def test_more_sweeps_of_the_same_queries_spare_more_reads() -> None:
    assert not building_pays(1000, 1, 10**6, 4, queries=200)
    assert building_pays(1000, 1, 10**6, 4, queries=200, sweeps=20)


@pytest.mark.parametrize(
    ("policy", "m", "there", "expected"),
    [
        ("never", MANY, True, False),
        ("auto", 1, False, False),
        ("auto", 1, True, True),
        ("auto", MANY, False, True),
        ("always", 1, False, True),
    ],
)
def test_the_policy_decides_whether_they_are_built_and_used(
    reader: IndexReader, policy, m: int, there: bool, expected: bool
) -> None:
    if there:
        gram_matrices(reader, "always", queries=1, progress=NullProgress())
    got = gram_matrices(reader, policy, queries=m, progress=NullProgress())
    assert (got is not None) == expected
    assert (reader.path / DERIVED_FOLDER).exists() == (there or expected)


def test_a_build_shows_its_progress_block_by_block(reader: IndexReader) -> None:
    done = []

    class Recorder:
        @contextmanager
        def task(self, title: str, total: int) -> Iterator[Advance]:
            done.append((title, total))
            yield lambda count: done.append(("", count))

    gram_matrices(reader, "always", queries=1, progress=Recorder())
    assert done == [("Gram matrices", 2), ("", 1), ("", 1)]


def test_scores_with_kept_matrices_equal_those_from_the_store_within_the_bound(reader: IndexReader) -> None:
    wanted = queries(3)
    settings = EngineSettings()
    kept = gram_matrices(reader, "always", queries=3, progress=NullProgress())
    assert kept is not None
    engines = ["datainf", "graddot"]
    streamed = score_index(reader, wanted, engines, settings)
    got = score_index(reader, wanted, engines, settings, gram=kept)
    magnitude = np.zeros((3, N))
    for rows, block in zip(gradients(BLOCKS, N), wanted.blocks, strict=True):
        g, q = np.abs(rows.astype(np.float64)), block.double().abs().numpy()
        norms = (g**2).sum(1)
        damping = 0.1 * norms.mean()
        weights = (g @ q.T) / (damping + norms)[:, None] / N
        magnitude += (g @ (q + weights.T @ g).T).T / damping
    # Each of the two may be off by the bound.
    difference = np.abs(got["datainf"].values - streamed["datainf"].values)
    assert (difference <= 2 * DATAINF * EPS * magnitude).all()
    np.testing.assert_allclose(got["graddot"].values, streamed["graddot"].values, rtol=1e-4, atol=1e-4)


def test_a_damaged_file_is_told_and_written_again(
    reader: IndexReader, caplog: pytest.LogCaptureFixture
) -> None:
    gram_matrices(reader, "always", queries=1, progress=NullProgress())
    path = reader.path / DERIVED_FOLDER / GRAM_FILE
    good = path.read_bytes()
    path.write_bytes(good[:-1] + b"\x00")
    # One query does not repay them: the index is read instead.
    assert gram_matrices(reader, "auto", queries=1, progress=NullProgress()) is None
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "checksum" in caplog.text
    assert gram_matrices(reader, "always", queries=1, progress=NullProgress()) is not None
    assert path.read_bytes() == good


@pytest.mark.parametrize(("policy", "level"), [("always", logging.WARNING), ("auto", logging.INFO)])
def test_what_keeps_them_from_being_written_is_told_and_no_error(
    reader: IndexReader, caplog: pytest.LogCaptureFixture, policy, level: int
) -> None:
    (reader.path / DERIVED_FOLDER).write_text("a file where the folder should be")
    with caplog.at_level(logging.INFO, logger="gradian.engines.gram"):
        assert gram_matrices(reader, policy, queries=MANY, progress=NullProgress()) is None
    assert caplog.records[-1].levelno == level
    assert "without Gram matrices" in caplog.text


def test_a_reader_that_never_builds_leaves_what_is_there(reader: IndexReader) -> None:
    gram_matrices(reader, "always", queries=1, progress=NullProgress())
    gram_matrices(reader, "never", queries=MANY, progress=NullProgress())
    assert sorted(os.listdir(reader.path / DERIVED_FOLDER)) == [CHECKSUM_FILE, GRAM_FILE]
    assert find_gram(reader, pytest.fail) is not None


def test_matrices_that_cannot_be_mapped_are_told_and_the_index_is_read(
    reader: IndexReader, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = gram_matrices(reader, "always", queries=1, progress=NullProgress())
    assert kept is not None
    assert kept.block_bytes == 4 * N * N
    monkeypatch.setattr("gradian.engines.gram.address_space_left", lambda: 8 * N * N - 1)
    with caplog.at_level(logging.INFO, logger="gradian.engines.gram"):
        assert gram_matrices(reader, "auto", queries=1, progress=NullProgress()) is None
    assert "address space" in caplog.text
    monkeypatch.setattr("gradian.engines.gram.address_space_left", lambda: 8 * N * N)
    assert gram_matrices(reader, "auto", queries=1, progress=NullProgress()) is not None

    def refuse(*arguments: object, **named: object) -> None:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr("numpy.memmap", refuse)
    with pytest.raises(StoreError, match="ulimit -v"):
        kept.block(0)


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")])
def test_too_little_memory_to_build_them_is_told_and_no_error(
    reader: IndexReader, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*arguments: object, **named: object) -> None:
        raise error

    monkeypatch.setattr("gradian.engines.gram.gram", fail)
    assert gram_matrices(reader, "always", queries=1, progress=NullProgress()) is None
    assert "too little memory" in caplog.text
    monkeypatch.setattr("gradian.engines.gram.gram", lambda *arguments, **named: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        gram_matrices(reader, "always", queries=1, progress=NullProgress())
