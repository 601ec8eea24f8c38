from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from experiments.projection_fidelity import stored_bytes, variants, write_variant
from gradian.api import build_index_for
from gradian.config import GradsConfig
from tests.integration.poisoned import PoisonedRun


@pytest.mark.parametrize(
    "grads",
    [
        GradsConfig(projection_dim=64),
        GradsConfig(projection_dim=64, projection_kind="rademacher"),
        GradsConfig(storage_dtype="float16"),
    ],
    ids=["countsketch", "rademacher", "float16"],
)
def test_a_variant_written_from_the_exact_index_is_what_indexing_writes(
    grads: GradsConfig, poisoned_run: PoisonedRun, poisoned_cache: Path, tmp_path: Path
) -> None:
    exact = build_index_for(poisoned_run.config(poisoned_cache))
    written = write_variant(exact, grads, tmp_path)
    settings = {**grads.model_dump(), "chunk_size": 8}
    indexed = build_index_for(poisoned_run.config(poisoned_cache, grads=settings))
    assert written.blocks == indexed.blocks
    for block in range(len(indexed.blocks)):
        for (first, ours), (_, theirs) in zip(written.tiles(block), indexed.tiles(block), strict=True):
            np.testing.assert_array_equal(ours, theirs, err_msg=f"block {block}, row {first}")
    assert stored_bytes(written) < stored_bytes(exact)


def test_every_projection_has_every_width_and_the_exact_index_comes_first() -> None:
    made = variants([8, 16])
    assert made[0] == GradsConfig()
    assert len(made) == len({grads.model_dump_json() for grads in made}) == 6
