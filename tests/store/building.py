"""A small index whose every value follows from a seed, built the way `grads.collect` builds one."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gradian.store.format import StorageDtype
from gradian.store.reader import IndexReader
from gradian.store.writer import IndexWriter, open_writer
from gradian.types import BlockSpec

BLOCKS = (
    BlockSpec("model.layers.0.q_proj", ((2, 3), (5, 2)), 0),
    BlockSpec("model.layers.0.down_proj", ((7,),), 16),
    BlockSpec("model.layers.1.q_proj.lora_A", ((1, 1),), 23),
)
INPUTS = {"dataset": "d", "seed": 3, "spec": {"dtype": "float32", "lambda": 0.1}}
N, CHUNK = 11, 4


def gradients(
    blocks: tuple[BlockSpec, ...] = BLOCKS, n: int = N, dtype: StorageDtype = "float32"
) -> list[npt.NDArray[Any]]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal((n, block.size)).astype(dtype) for block in blocks]


def write_chunk(
    writer: IndexWriter, k: int, values: list[npt.NDArray[Any]], batch: int = 3, *, whole: bool = False
) -> None:
    """Write a chunk in shuffled batches, block by block or (`whole`) all blocks of a batch at once."""
    rows = np.array(writer.chunk_rows(k), dtype=np.int64)
    rows = np.random.default_rng(k).permutation(rows)
    with writer.chunk(k) as chunk:
        for i in range(0, len(rows), batch):
            part = rows[i : i + batch]
            if whole:
                chunk.write_rows(part, [stored[part] for stored in values])
            else:
                for block, stored in enumerate(values):
                    chunk.write_block(block, part, stored[part])
            chunk.write_examples(part, part * 0.5, part + 1)


def write_pending(
    writer: IndexWriter, values: list[npt.NDArray[Any]], batch: int = 3, *, whole: bool = False
) -> None:
    """Write what is pending, each chunk as `write_chunk` does."""
    for k in writer.pending:
        write_chunk(writer, k, values, batch, whole=whole)


def build(cache: Path, *, force: bool = False, n: int = N, chunk_size: int = CHUNK) -> IndexReader:
    with open_writer(cache, INPUTS, BLOCKS, n, "float32", chunk_size, force=force, wait_seconds=60) as writer:
        write_pending(writer, gradients(n=n))
        return writer.finish({"findings": []})


def digests(cache: Path) -> dict[str, str]:
    """SHA-256 of every file in the cache."""
    return {
        str(path.relative_to(cache)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(cache.rglob("*"))
        if path.is_file()
    }


def memory_folder() -> str | None:
    """A file system in memory, or None for the ordinary temporary folder."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None
