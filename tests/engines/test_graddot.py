from __future__ import annotations

import numpy as np
import torch

from gradian.engines import BlockView, EngineSettings
from gradian.engines.graddot import graddot
from tests.tolerances import EPS, SUMS

from .stores import random_store


def test_it_is_the_dot_product_of_each_gradient_with_each_query() -> None:
    store = random_store(0, 11, [5003])
    q = np.random.default_rng(2).standard_normal((3, 5003)).astype(np.float32)
    got = graddot(BlockView(store, 0, torch.from_numpy(q)), EngineSettings()).numpy()
    g64, q64 = store.arrays[0].astype(np.float64), q.astype(np.float64)
    bound = SUMS["query_dots", torch.float32] * EPS * (np.abs(g64) @ np.abs(q64).T)
    assert (np.abs(got - g64 @ q64.T) <= bound).all()


def test_it_is_exact_on_integers() -> None:
    store = random_store(0, 11, [9001])
    store.arrays[0] = np.rint(store.arrays[0] * 3).astype(np.float32)
    q = torch.arange(9001, dtype=torch.float32).remainder(7).repeat(2, 1)
    got = graddot(BlockView(store, 0, q), EngineSettings())
    assert torch.equal(got, torch.from_numpy(store.arrays[0]).double() @ q.double().T)
