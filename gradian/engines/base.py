"""What an influence engine is, and the view of one block that it works on.

An engine maps one block's gradients and query gradients to scores; the scorer sums blocks. The view
keeps the block mapped and remembers the dot products D = G Q^T, so that several engines on one block read the
store once for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gradian.address_space import address_space_left
from gradian.ops.datainf_accumulate import datainf_accumulate
from gradian.ops.query_dots import query_dots
from gradian.ops.stored_rows import TILE_ROWS
from gradian.registry import Registry
from gradian.types import BlockSpec, FloatArray


class GradientStore(Protocol):
    """The part of an index that engines read; `gradian.store.reader.IndexReader` is one."""

    @property
    def n(self) -> int:
        """Number of training examples."""

    @property
    def blocks(self) -> tuple[BlockSpec, ...]:
        """The blocks, in order."""

    @property
    def sq_norms(self) -> FloatArray:
        """Squared norm of each example's gradient per block, float64 [n, blocks]."""

    def tiles(self, block: int, max_rows: int | None = None) -> Iterator[tuple[int, npt.NDArray[Any]]]:
        """Yield (first row, rows [b, d_l] in storage dtype), in dataset order."""

    def chunks(self) -> Iterator[tuple[range, Iterator[npt.NDArray[Any]]]]:
        """Yield (rows covered, for each block in order its rows [b, d_l]), in dataset order.

        A block's rows are taken before the next chunk is asked for.
        """


class GramStore(Protocol):
    """Gram matrices of the blocks of a store; `gradian.store.gram_cache.GramFile` is one."""

    def block(self, block: int) -> npt.NDArray[np.float32]:
        """K = G G^T of one block, float32 [n, n]."""


@dataclass(frozen=True)
class EngineSettings:
    """The numbers an engine may use.

    Attributes:
        lambda_scale: damping relative to the block's mean squared gradient norm.
        lambda_override: damping as an absolute number, or None.
        learning_rate: lr_c of the one checkpoint, for TracIn.
        threads: how many threads compiled code uses, or None for as many as torch; changes no score.
    """

    lambda_scale: float = 0.1
    lambda_override: float | None = None
    learning_rate: float = 1.0
    threads: int | None = None


class BlockView:
    """One block's stored gradients G [n, d] and query gradients Q [m, d], and K = G G^T where it is kept.

    Engines work on D, K and the norms where K is known, and stream the block where it is not.

    The block's files stay mapped as long as the view lives: their pages are looked up once, for both reads. Where
    address space is limited and the block would take too much of what is left, each read maps a part after the other;
    no score depends on it. Memory beside them: a few arrays of m x d and one of n x m, whatever the number of rows on
    disk.

    Args:
        store: the index.
        block: number of the block.
        queries: Q, float32.
        threads: see EngineSettings.
        gram: the Gram matrices kept of the store, or None.
        keep_dots: remember D; without it an engine's `transform_query` takes no memory of n x m.

    Attributes:
        queries: Q, float32 [m, d].
        n: number of rows.
        sq_norms: squared norms of the rows, float64 [n].
        gram: K, float32 [n, n], mapped; None where it is not kept, or where float32 cannot hold it.
    """

    # Mean squared norms between which products of gradients neither vanish nor overflow in float32.
    GRAM_RANGE = (2.0**-60, 2.0**60)

    def __init__(
        self,
        store: GradientStore,
        block: int,
        queries: Tensor,
        threads: int | None = None,
        *,
        gram: GramStore | None = None,
        keep_dots: bool = True,
    ) -> None:
        self.queries = queries
        self.n = store.n
        self._store = store
        self._block = block
        self._threads = threads
        self._keep_dots = keep_dots
        self._dots: Tensor | None = None
        self.sq_norms = torch.from_numpy(store.sq_norms[:, block].copy())
        low, high = self.GRAM_RANGE
        usable = gram is not None and low <= float(self.sq_norms.mean()) <= high
        self.gram = torch.from_numpy(gram.block(block)) if gram is not None and usable else None

    def damping(self, settings: EngineSettings) -> float:
        """lambda_l: `lambda_override`, or lambda_scale times the mean squared gradient norm of the block."""
        if settings.lambda_override is not None:
            return settings.lambda_override
        return settings.lambda_scale * float(self.sq_norms.mean())

    @property
    def segments(self) -> Iterable[Tensor]:
        """The gradients in storage dtype, [rows_k, d] for each chunk in order; to be gone through once."""
        # Cut where the references cut a chunk themselves, or their sums would round otherwise.
        return self._mapped if self._fits else self._arriving(TILE_ROWS)

    def _arriving(self, max_rows: int | None = None) -> Iterator[Tensor]:
        for _, rows in self._store.tiles(self._block, max_rows):
            yield torch.from_numpy(rows)
            # Or this frame would keep them while the next ones are mapped.
            del rows

    @cached_property
    def _mapped(self) -> list[Tensor]:
        return list(self._arriving())

    @cached_property
    def _fits(self) -> bool:
        # Half, since scores and compiled code need some too; as if stored in float32.
        left = address_space_left()
        return left is None or 4 * self.n * self.queries.shape[1] <= left // 2

    @property
    def dots(self) -> Tensor:
        """D = G Q^T, float64 [n, m]; one read of the block, then kept."""
        if self._dots is None:
            self._dots = self.dots_with(self.queries)
        return self._dots

    def gram_times(self, weights: Tensor) -> Tensor:
        """K W = G G^T W for weights W, float64 [n, m]: float64 [n, m], no read of the block.

        Raises:
            ValueError: K is not known.
        """
        if self.gram is None:
            raise ValueError("the Gram matrix of this block is not known")
        # float32 cannot hold every weight: keep the exponent of each query outside the product.
        size = weights.abs().amax(dim=0).clamp_min(torch.finfo(torch.float64).tiny)
        scaled = (weights / size).T.float().contiguous()
        return query_dots([self.gram], scaled, threads=self._threads) * size

    def dots_with(self, vectors: Tensor) -> Tensor:
        """G V^T for other vectors V [m, d] float32: float64 [n, m], one read of the block."""
        return query_dots(self.segments, vectors, threads=self._threads)

    def scaled_sum(self, scale: Tensor) -> Tensor:
        """Return sum_i s_i <g_i, q> g_i for every query q, float64 [m, d], given s float64 [n].

        D, where it is kept, and the sum come from one read of the block.
        """
        self._dots, total = datainf_accumulate(
            self.segments, self.queries, scale, keep_dots=self._keep_dots, threads=self._threads
        )
        return total


@dataclass(frozen=True, eq=False)
class TransformedQuery:
    """m queries after an engine's transform: in one block the scores of a row g are scale * (vectors g).

    Attributes:
        vectors: float32 [m, d].
        scale: float64 [m]; what float32 might not hold stays outside of the product.
    """

    vectors: Tensor
    scale: Tensor

    def scores(self, rows: Tensor, threads: int | None = None) -> Tensor:
        """The block's contribution to the scores of some rows [b, d] in storage dtype: float64 [b, m]."""
        return query_dots([rows], self.vectors, threads=threads) * self.scale


class QueryTransform(Protocol):
    """The linear part of an engine: what it makes of the queries before they meet the rows."""

    def __call__(self, view: BlockView, settings: EngineSettings) -> TransformedQuery:
        """Return the block's transformed queries; at most one read of the block."""


class Engine(Protocol):
    """Scores of one block: float64 [n, m], summed over blocks by the scorer."""

    def __call__(self, view: BlockView, settings: EngineSettings) -> Tensor:
        """Return the block's contribution to every example's score on every query."""


@dataclass(frozen=True)
class EngineEntry:
    """A registered engine.

    Attributes:
        score_block: the engine.
        transform_query: the same scores in two steps, for readers that go through an index chunk by chunk.
        curvature_free: linear in the gradients alone, so that `engine.normalize_query` applies.
        summary: one line for listings.
    """

    score_block: Engine
    transform_query: QueryTransform
    curvature_free: bool
    summary: str


ENGINES: Registry[EngineEntry] = Registry("engine")


def engine(name: str, transform_query: QueryTransform, *, curvature_free: bool) -> Callable[[Engine], Engine]:
    """Register the decorated function as the engine called `name`; its docstring's first line is its summary."""

    def decorate(score_block: Engine) -> Engine:
        summary = (score_block.__doc__ or "").strip().splitlines()[0]
        ENGINES.register(name)(EngineEntry(score_block, transform_query, curvature_free, summary))
        return score_block

    return decorate
