from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradian.engines import BlockView, EngineSettings
from gradian.engines.datainf import datainf
from gradian.ops.query_dots import query_dots
from tests.tolerances import DATAINF, EPS

from .stores import ArrayGram, ArrayStore, random_store


def dense_datainf(g: np.ndarray, q: np.ndarray, damping: float) -> tuple[np.ndarray, np.ndarray]:
    """Average of n inverses (g_i g_i^T + damping I)^-1, each inverted densely; and the magnitude sum."""
    n, d = g.shape
    inverse = np.mean([np.linalg.inv(np.outer(row, row) + damping * np.eye(d)) for row in g], axis=0)
    dots = np.abs(g) @ np.abs(q).T
    weights = dots / (damping + (g**2).sum(1))[:, None] / n
    magnitude = (np.abs(g) @ (np.abs(q) + weights.T @ np.abs(g)).T) / damping
    return g @ inverse @ q.T, magnitude


@pytest.mark.parametrize(("n", "d", "m"), [(1, 1, 1), (7, 13, 3), (31, 64, 1), (12, 33, 5)])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("lambda_scale", [0.001, 0.1, 10.0])
@pytest.mark.parametrize("kept", [False, True], ids=["streamed", "with K"])
def test_it_equals_the_mean_of_densely_inverted_rank_one_hessians(n, d, m, dtype, lambda_scale, kept) -> None:
    store = random_store(n * d, n, [d], dtype)
    q = np.random.default_rng(1).standard_normal((m, d)).astype(np.float32)
    view = BlockView(store, 0, torch.from_numpy(q), gram=ArrayGram(store) if kept else None)
    settings = EngineSettings(lambda_scale=lambda_scale)

    g = store.arrays[0].astype(np.float64)
    damping = lambda_scale * (g**2).sum(1).mean()
    expected, magnitude = dense_datainf(g, q.astype(np.float64), damping)
    error = np.abs(datainf(view, settings).numpy() - expected)

    assert view.damping(settings) == pytest.approx(damping, rel=1e-12)
    assert (error <= DATAINF * EPS * magnitude).all()


def test_an_absolute_damping_replaces_the_relative_one() -> None:
    store = random_store(0, 6, [9])
    q = torch.randn(2, 9, generator=torch.Generator().manual_seed(0))
    view = BlockView(store, 0, q)
    expected, magnitude = dense_datainf(store.arrays[0].astype(np.float64), q.double().numpy(), 3.5)
    got = datainf(view, EngineSettings(lambda_override=3.5)).numpy()
    assert (np.abs(got - expected) <= DATAINF * EPS * magnitude).all()


def test_heavy_damping_approaches_the_gradient_dot_product() -> None:
    store = random_store(3, 10, [20])
    view = BlockView(store, 0, torch.ones(1, 20))
    scores = datainf(view, EngineSettings(lambda_override=1e12)) * 1e12
    torch.testing.assert_close(scores, view.dots, rtol=1e-5, atol=1e-5)


def test_tiny_gradients_do_not_overflow_the_damped_inverse() -> None:
    store = ArrayStore([np.full((4, 3), 1e-19, dtype=np.float32)])
    scores = datainf(BlockView(store, 0, torch.full((1, 3), 1e-3)), EngineSettings())
    assert torch.isfinite(scores).all()
    assert (scores > 0).all()


def test_a_block_without_any_gradient_contributes_nothing() -> None:
    store = ArrayStore([np.zeros((4, 3), dtype=np.float32)])
    scores = datainf(BlockView(store, 0, torch.ones(2, 3)), EngineSettings())
    assert torch.equal(scores, torch.zeros(4, 2, dtype=torch.float64))


def test_it_maps_the_block_once_and_leaves_the_dot_products_behind() -> None:
    store = random_store(0, 20, [8])
    view = BlockView(store, 0, torch.ones(2, 8))
    datainf(view, EngineSettings())
    store.arrays[0][:] = 0
    assert torch.equal(
        view.dots, query_dots([torch.from_numpy(random_store(0, 20, [8]).arrays[0])], view.queries)
    )
    assert store.reads == 1


def test_with_the_gram_matrix_it_reads_the_block_once() -> None:
    store = random_store(0, 20, [8])
    view = BlockView(store, 0, torch.ones(2, 8), gram=ArrayGram(store))
    datainf(view, EngineSettings())
    _ = view.dots
    assert store.reads == 1


@pytest.mark.parametrize("size", [1e-19, 1e19])
def test_a_gram_matrix_that_float32_cannot_hold_is_not_used(size: float) -> None:
    store = ArrayStore([np.float32(size) * random_store(5, 6, [9]).arrays[0]])
    q = torch.randn(1, 9, generator=torch.Generator().manual_seed(0)) * 1e-3
    view = BlockView(store, 0, q, gram=ArrayGram(store))
    assert view.gram is None
    assert torch.equal(datainf(view, EngineSettings()), datainf(BlockView(store, 0, q), EngineSettings()))


def test_from_the_same_arrays_woodbury_gives_the_exact_damped_inverse() -> None:
    store = random_store(2, 7, [13])
    g = store.arrays[0].astype(np.float64)
    q = torch.randn(3, 13, generator=torch.Generator().manual_seed(0))
    view = BlockView(store, 0, q, gram=ArrayGram(store))
    damping = view.damping(EngineSettings())
    expected = g @ np.linalg.inv(g.T @ g / 7 + damping * np.eye(13)) @ q.double().numpy().T
    assert view.gram is not None
    system = view.gram.double() + 7 * damping * torch.eye(7, dtype=torch.float64)
    got = 7 * torch.linalg.solve(system, view.dots)
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-4, atol=1e-6)


@given(st.integers(0, 2**16), st.integers(1, 12), st.integers(1, 9))
def test_scores_do_not_depend_on_where_chunks_end(seed: int, n: int, chunk: int) -> None:
    q = torch.ones(1, 6)
    whole = datainf(BlockView(random_store(seed, n, [6], chunk_size=n), 0, q), EngineSettings())
    split = datainf(BlockView(random_store(seed, n, [6], chunk_size=chunk), 0, q), EngineSettings())
    torch.testing.assert_close(split, whole, rtol=1e-4, atol=1e-5)
