from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.store.building import memory_folder


@pytest.fixture
def cache() -> Iterator[Path]:
    """A cache folder in memory where there is one: these tests flush thousands of files."""
    path = Path(tempfile.mkdtemp(prefix="gradian-store-", dir=memory_folder()))
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="module", params=["reference", "native"])
def implementation(request: pytest.FixtureRequest) -> Iterator[str]:
    """Every test of the module runs once on each implementation of the chunk files."""
    before = os.environ.get("GRADIAN_OPS")
    os.environ["GRADIAN_OPS"] = request.param
    yield request.param
    if before is None:
        del os.environ["GRADIAN_OPS"]
    else:
        os.environ["GRADIAN_OPS"] = before
