from __future__ import annotations

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
