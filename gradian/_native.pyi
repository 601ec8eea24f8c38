from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

def instruction_sets() -> list[str]: ...
def fold_top_k(
    lowest: NDArray[np.float64],
    lowest_rows: NDArray[np.int64],
    highest: NDArray[np.float64],
    highest_rows: NDArray[np.int64],
    seen: int,
    tile: NDArray[np.float64],
    threads: int,
) -> None: ...
def add_cluster_sums(
    totals: NDArray[np.float64], tile: NDArray[np.float64], clusters: NDArray[np.int64], threads: int
) -> None: ...
def widen(values: NDArray[Any], dtype: str, isa: str | None = None) -> NDArray[np.float32]: ...
def query_dots(
    segments: list[NDArray[Any]],
    dtype: str,
    queries: NDArray[np.float32],
    threads: int,
    isa: str | None = None,
) -> NDArray[np.float64]: ...
def gram(
    segments: list[NDArray[Any]],
    dtype: str,
    columns: int,
    threads: int,
    isa: str | None = None,
) -> NDArray[np.float32]: ...
def datainf_accumulate(
    segments: list[NDArray[Any]],
    dtype: str,
    queries: NDArray[np.float32],
    scale: NDArray[np.float64],
    threads: int,
    isa: str | None = None,
    keep_dots: bool = True,
    total: NDArray[np.float64] | None = None,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]: ...
def datainf_panel_rows(dtype: str, queries: int, columns: int) -> int: ...

class _BoundClass(type): ...

class Heartbeat(metaclass=_BoundClass):
    def __init__(self, seconds: float, message: str, code: int) -> None: ...
    def beat(self) -> None: ...
    def rest(self) -> None: ...

class ChunkReader(metaclass=_BoundClass):
    def __init__(self, dtype: str, read_ahead: int) -> None: ...
    @property
    def reads_ahead(self) -> bool: ...
    def map_rows(self, fd: int, offset: int, rows: int, width: int) -> NDArray[Any]: ...
    def warm(self, fd: int, offset: int, size: int) -> None: ...
    def close(self) -> None: ...

class ChunkWriter(metaclass=_BoundClass):
    def __init__(
        self, rows: int, starts: Sequence[int], widths: Sequence[int], dtype: str, isa: str | None = None
    ) -> None: ...
    def write(
        self,
        fd: int,
        first_block: int,
        rows: NDArray[np.int64],
        blocks: list[NDArray[Any]],
        sq_norms: NDArray[np.float64],
    ) -> None: ...
