"""A gradient store held in memory, for tests of engines and scoring."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from gradian.types import BlockSpec, FloatArray


class ArrayStore:
    """Blocks as arrays, handed out in chunks of `chunk_size` rows like the index on disk."""

    def __init__(self, arrays: list[npt.NDArray[np.float32]], chunk_size: int = 5) -> None:
        self.arrays = arrays
        self.chunk_size = chunk_size
        self.n = len(arrays[0])
        self.reads = 0
        offsets = np.cumsum([0, *(a.shape[1] for a in arrays)])
        self.blocks = tuple(
            BlockSpec(f"block{i}", ((a.shape[1],),), int(offsets[i])) for i, a in enumerate(arrays)
        )
        self.sq_norms: FloatArray = np.stack(
            [np.square(a.astype(np.float64)).sum(axis=1) for a in arrays], axis=1
        )

    def tiles(self, block: int, max_rows: int | None = None) -> Iterator[tuple[int, npt.NDArray[np.float32]]]:
        self.reads += 1
        step = min(self.chunk_size, max_rows or self.chunk_size)
        for start in range(0, self.n, step):
            yield start, self.arrays[block][start : start + step]

    def chunks(self) -> Iterator[tuple[range, Iterator[npt.NDArray[np.float32]]]]:
        self.reads += len(self.arrays)
        for start in range(0, self.n, self.chunk_size):
            rows = range(start, min(self.n, start + self.chunk_size))
            yield rows, (array[start : rows.stop] for array in self.arrays)


def random_store(
    seed: int, n: int, sizes: list[int], dtype: str = "float32", chunk_size: int = 5
) -> ArrayStore:
    rng = np.random.default_rng(seed)
    return ArrayStore([rng.standard_normal((n, d)).astype(dtype) for d in sizes], chunk_size)


class ArrayGram:
    """Gram matrices of an ArrayStore, rounded to float32 as the file beside an index holds them."""

    def __init__(self, store: ArrayStore) -> None:
        self._store = store

    def block(self, block: int) -> npt.NDArray[np.float32]:
        rows = self._store.arrays[block].astype(np.float64)
        return (rows @ rows.T).astype(np.float32)
