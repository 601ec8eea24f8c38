from __future__ import annotations

import pytest
import torch

from gradian.config.schema import GradsConfig
from gradian.grads.collect import GradientCollector
from gradian.grads.projection import projected_specs
from gradian.ops.projection import projection, stream_key
from gradian.types import BlockSpec
from tests.tiny_models import random_examples, tiny_lora

KINDS = ("countsketch", "rademacher")


def test_offsets_follow_the_projected_sizes_and_small_blocks_stay() -> None:
    specs = (
        BlockSpec("a", ((2, 50), (9, 2)), 0),
        BlockSpec("b", ((4,),), 118),
        BlockSpec("c", ((60,),), 122),
    )
    projected = projected_specs(specs, 16)
    assert [(s.name, s.shape, s.offset) for s in projected] == [
        ("a", ((16,),), 0),
        ("b", ((4,),), 16),
        ("c", ((16,),), 20),
    ]
    assert projected_specs(specs, None) == specs


@pytest.mark.parametrize("kind", KINDS)
def test_stored_and_query_gradients_share_one_projection(kind: str) -> None:
    loaded = tiny_lora("llama")
    encoded = random_examples([7, 5, 9], silent=(1,))
    exact = GradientCollector(loaded, GradsConfig(), 0)
    grads = GradsConfig(projection_dim=32, projection_kind=kind, projection_seed=5)
    collector = GradientCollector(loaded, grads, 0)
    queries = collector.gradients(encoded)
    for spec, block, query in zip(collector.specs, exact.gradients(encoded), queries, strict=True):
        expected = projection(block, 32, kind, stream_key(5, spec.name))
        torch.testing.assert_close(query, expected, rtol=1e-4, atol=1e-5)
        assert query.shape == (3, spec.size) == (3, 32)
    for batch in collector.batches(encoded):
        for query, stored in zip(queries, batch.blocks, strict=True):
            assert torch.equal(query[torch.from_numpy(batch.indices)], stored)


def test_another_seed_is_another_projection() -> None:
    loaded, encoded = tiny_lora("llama"), random_examples([7])
    first, second = (
        GradientCollector(loaded, GradsConfig(projection_dim=32, projection_seed=s), 0).gradients(encoded)[0]
        for s in (0, 1)
    )
    assert not torch.allclose(first, second)


def test_a_blocks_projection_does_not_depend_on_the_module_filter() -> None:
    loaded, encoded = tiny_lora("llama"), random_examples([7])
    whole = GradientCollector(loaded, GradsConfig(projection_dim=32), 0)
    part = GradientCollector(loaded, GradsConfig(projection_dim=32, module_filter="up_proj"), 0)
    names = [spec.name for spec in whole.specs]
    for spec, block in zip(part.specs, part.gradients(encoded), strict=True):
        assert torch.equal(block, whole.gradients(encoded)[names.index(spec.name)])
