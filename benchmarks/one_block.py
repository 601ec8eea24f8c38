"""One block of an index, as an index."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy.typing as npt

from gradian.engines import GradientStore
from gradian.types import FloatArray


class OneBlock:
    """A store of one block of another; see `gradian.engines.GradientStore`."""

    def __init__(self, store: GradientStore, block: int) -> None:
        self.n, self.blocks = store.n, (store.blocks[block],)
        self.sq_norms: FloatArray = store.sq_norms[:, block : block + 1]
        self._store, self._block = store, block

    def tiles(self, block: int, max_rows: int | None = None) -> Iterator[tuple[int, npt.NDArray[Any]]]:
        """Yield the block's tiles."""
        return self._store.tiles(self._block, max_rows)

    def chunks(self) -> Iterator[tuple[range, Iterator[npt.NDArray[Any]]]]:
        """Yield the block's chunks."""
        for first, rows in self.tiles(0):
            yield range(first, first + len(rows)), iter((rows,))
