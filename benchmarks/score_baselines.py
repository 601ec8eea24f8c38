"""DataInf over a stored index as people without Gradian would compute it, and exactly.

Per block, with gradients g_1..g_n, a query q and lambda = 0.1 mean_i ||g_i||^2 (Kwon et al. 2024, arXiv 2310.00902):

    r = (1/lambda) [ q - (1/n) sum_i (g_i . q) / (lambda + ||g_i||^2) g_i ],   score_j = <r, g_j>

All but the loop get ||g_i||^2 from the index, as Gradian does. float16 rows are made float32 before any sum:
half precision sums would be other numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gradian.engines import GradientStore
from gradian.types import FloatArray

LAMBDA_SCALE = 0.1


def _weights(store: GradientStore, block: int) -> tuple[float, FloatArray]:
    """Return lambda and 1 / (n (lambda + ||g_i||^2)) [n]."""
    norms = store.sq_norms[:, block]
    damping = LAMBDA_SCALE * float(norms.mean())
    return damping, 1.0 / (store.n * (damping + norms))


def torch_scores(store: GradientStore, queries: Sequence[Tensor], rows: int) -> Tensor:
    """Stream the mapped chunks twice, `rows` rows at a time, so that both products read a tile from cache.

    Args:
        store: an index of n rows.
        queries: per block float32 [m, d_l].
        rows: rows of a tile; at best as many as stay in cache.

    Returns:
        float32 [n, m].
    """
    m = len(queries[0])
    scores = torch.zeros(store.n, m)
    for block, query in enumerate(queries):
        damping, weights = _weights(store, block)
        scale = torch.from_numpy(weights).float()
        total = torch.zeros_like(query)
        for at, tile in _torch_tiles(store, block, rows):
            if m == 1:
                total[0].addmv_(tile.T, torch.mv(tile, query[0]) * scale[at])
            else:
                total.addmm_((torch.mm(tile, query.T) * scale[at, None]).T, tile)
        r = (query - total) / damping
        for at, tile in _torch_tiles(store, block, rows):
            if m == 1:
                scores[at, 0] += torch.mv(tile, r[0])
            else:
                scores[at] += torch.mm(tile, r.T)
    return scores


def torch_scores_with_gram(
    store: GradientStore, queries: Sequence[Tensor], grams: Sequence[Tensor], rows: int
) -> Tensor:
    """Stream the mapped chunks once: with K = G G^T the scores are (1/lambda) [D - K (D / (lambda + diag K)) / n].

    Args:
        store: an index of n rows.
        queries: per block float32 [m, d_l].
        grams: per block K, float32 [n, n].
        rows: rows of a tile.

    Returns:
        float32 [n, m].
    """
    m = len(queries[0])
    scores = torch.zeros(store.n, m)
    for block, query in enumerate(queries):
        damping, weights = _weights(store, block)
        scale = torch.from_numpy(weights).float()
        dots = torch.empty_like(scores)
        for at, tile in _torch_tiles(store, block, rows):
            if m == 1:
                torch.mv(tile, query[0], out=dots[at, 0])
            else:
                torch.mm(tile, query.T, out=dots[at])
        scores += (dots - grams[block] @ (dots * scale[:, None])) / damping
    return scores


def _torch_tiles(store: GradientStore, block: int, rows: int) -> Iterator[tuple[slice, Tensor]]:
    """Yield (rows covered, float32 rows [b, d]); a float16 tile is widened into one buffer that is used again."""
    buffer = torch.empty(rows, store.blocks[block].size)
    for first, mapped in store.tiles(block):
        chunk = torch.from_numpy(mapped)
        for start in range(0, len(chunk), rows):
            tile = chunk[start : start + rows]
            if tile.dtype != torch.float32:
                tile = buffer[: len(tile)].copy_(tile)
            yield slice(first + start, first + start + len(tile)), tile


def numpy_scores(store: GradientStore, queries: Sequence[Tensor], rows: int) -> npt.NDArray[np.float32]:
    """The same with numpy alone; arguments as `torch_scores`, float32 [n, m]."""
    scores = np.zeros((store.n, len(queries[0])), dtype=np.float32)
    for block, asked in enumerate(queries):
        query = asked.numpy()
        damping, weights = _weights(store, block)
        scale = weights.astype(np.float32)[:, None]
        total = np.zeros_like(query)
        for at, tile in _numpy_tiles(store, block, rows):
            total += ((tile @ query.T) * scale[at]).T @ tile
        r = ((query - total) / np.float32(damping)).T
        for at, tile in _numpy_tiles(store, block, rows):
            scores[at] += tile @ r
    return scores


def _numpy_tiles(
    store: GradientStore, block: int, rows: int
) -> Iterator[tuple[slice, npt.NDArray[np.float32]]]:
    for first, mapped in store.tiles(block):
        for start in range(0, len(mapped), rows):
            tile = mapped[start : start + rows].astype(np.float32, copy=False)
            yield slice(first + start, first + start + len(tile)), tile


def loop_scores(gradients: Sequence[Sequence[Tensor]], queries: Sequence[Tensor]) -> Tensor:
    """Score as code published with the method does: for each query, each weight and each training example.

    Everything is in memory, every step is an elementwise operation or a sum over a whole weight, and the
    squared norms are computed anew for each query. A block counts as one weight.

    Args:
        gradients: per weight, per training example, its gradient: float32 [d_l].
        queries: per weight float32 [m, d_l].

    Returns:
        float32 [n, m].
    """
    n, m = len(gradients[0]), len(queries[0])
    scores = torch.zeros(n, m)
    for number in range(m):
        inverse_products = []
        for weight, examples in enumerate(gradients):
            query = queries[weight][number]
            damping = torch.stack([torch.sum(g**2) for g in examples]).mean() * LAMBDA_SCALE
            product = torch.zeros_like(query)
            for g in examples:
                coefficient = torch.sum(query * g) / (damping + torch.sum(g**2))
                product += (query - coefficient * g) / (n * damping)
            inverse_products.append(product)
        for j in range(n):
            for weight, examples in enumerate(gradients):
                scores[j, number] += torch.sum(inverse_products[weight] * examples[j])
    return scores


def gradients_in_memory(store: GradientStore, blocks: int, rows: int) -> list[list[Tensor]]:
    """Return the first `rows` rows of the first `blocks` blocks as `loop_scores` takes them."""
    held: list[list[Tensor]] = []
    for block in range(blocks):
        examples: list[Tensor] = []
        for _, tile in store.tiles(block, rows):
            # `+ 0` copies: a view of the file would be read from the page cache at every step.
            examples += (torch.from_numpy(row.astype(np.float32) + 0) for row in tile)
            if len(examples) >= rows:
                break
        held.append(examples[:rows])
    return held


def exact_scores(
    store: GradientStore, queries: Sequence[npt.NDArray[np.float32]]
) -> tuple[FloatArray, FloatArray]:
    """Return DataInf in float64 and the sum of the magnitudes of its terms, each [n, m].

    The second, sum_l (1/lambda) sum_d [ |q_d| + sum_i |c_i| |g_id| ] |g_jd| with c_i the coefficient of g_i in r, is
    what rounding errors are compared with: a score may cancel to nothing, its terms do not.
    """
    scores = np.zeros((store.n, len(queries[0])))
    magnitudes = np.zeros_like(scores)
    for block, query in enumerate(queries):
        g = np.concatenate([tile.astype(np.float64) for _, tile in store.tiles(block)])
        q = query.astype(np.float64)
        damping, weights = _weights(store, block)
        coefficients = (g @ q.T) * weights[:, None]
        scores += g @ (q - coefficients.T @ g).T / damping
        size = np.abs(g)
        magnitudes += size @ (np.abs(q) + np.abs(coefficients).T @ size).T / damping
    return scores, magnitudes
