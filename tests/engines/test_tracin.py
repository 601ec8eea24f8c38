from __future__ import annotations

import torch

from gradian.engines import BlockView, EngineSettings
from gradian.engines.tracin import tracin

from .stores import random_store


def test_one_checkpoint_weighs_the_dot_product_by_its_learning_rate() -> None:
    view = BlockView(random_store(0, 7, [12]), 0, torch.ones(2, 12))
    assert torch.equal(tracin(view, EngineSettings(learning_rate=0.25)), 0.25 * view.dots)
