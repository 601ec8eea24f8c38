"""Indexes filled with generated gradients, at the speed of the disk: what benchmarks score instead of a model's.

A row is `size_i * (u_i V + noise)`: a few directions that all rows share, noise, and a size of the row's own, so
that scores differ, cancel and rank as real ones do. The noise of one chunk is drawn once and dealt to
the rows of every chunk and block in another order: ten billion fresh normal numbers would take longer than the disk.
Everything follows from the seed.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gradian.store.format import StorageDtype
from gradian.store.reader import IndexReader
from gradian.store.writer import IndexWriter
from gradian.types import BlockSpec, IntArray

_DIRECTIONS = 4
# Far from both ends of float16.
_SIZE = 0.01


class GeneratedGradients:
    """Gradients of any rows of an index.

    Args:
        blocks: the blocks of the index.
        dtype: format of the stored gradients.
        chunk_rows: most rows that are asked for at a time.
        seed: of everything.
    """

    def __init__(
        self, blocks: Sequence[BlockSpec], dtype: StorageDtype, chunk_rows: int, seed: int = 0
    ) -> None:
        rng = np.random.default_rng(seed)
        self._dtype = dtype
        self._seed = seed
        widest = max(block.size for block in blocks)
        self._noise = rng.standard_normal((chunk_rows, widest), dtype=np.float32)
        self._directions = [
            rng.standard_normal((_DIRECTIONS, block.size), dtype=np.float32) for block in blocks
        ]

    def rows(self, block: int, rows: IntArray) -> npt.NDArray[Any]:
        """Return gradients [b, d_l] of these rows of one block, in the storage dtype."""
        directions = self._directions[block]
        rng = np.random.default_rng((self._seed, block, int(rows[0])))
        first = rng.integers(self._noise.shape[1] - directions.shape[1] + 1)
        order = rng.permutation(len(self._noise))[: len(rows)]
        values = self._noise[order, first : first + directions.shape[1]]
        values += rng.standard_normal((len(rows), _DIRECTIONS), dtype=np.float32) @ directions
        # A row is large or small in all its blocks.
        sizes = [np.random.default_rng((self._seed, int(row))).lognormal(sigma=0.5) for row in rows]
        values *= (_SIZE * np.array(sizes, dtype=np.float32))[:, None]
        return values.astype(self._dtype, copy=False)


def write_generated(
    writer: IndexWriter, blocks: Sequence[BlockSpec], gradients: GeneratedGradients, supervised: IntArray
) -> IndexReader:
    """Fill an index with generated gradients and finish it; what is already there stays.

    Args:
        writer: the open index.
        blocks: its blocks.
        gradients: of its rows.
        supervised: int64 [n], number of target tokens of each row.
    """
    pending = writer.pending
    for done, number in enumerate(pending, 1):
        rows = np.array(writer.chunk_rows(number), dtype=np.int64)
        with writer.chunk(number) as chunk:
            for block in range(len(blocks)):
                chunk.write_block(block, rows, gradients.rows(block, rows))
            chunk.write_examples(rows, 1.0 + rows / (rows + 1.0), supervised[rows])
        if done % 4 == 0:
            print(f"generated index: {done} of {len(pending)} chunks", file=sys.stderr)
    return writer.finish()
