from __future__ import annotations

import pytest
from transformers import PreTrainedTokenizerBase

from tests.integration.poisoned import PoisonedRun, make_poisoned_run


@pytest.fixture(scope="session")
def poisoned_run(
    tmp_path_factory: pytest.TempPathFactory, tiny_tokenizer: PreTrainedTokenizerBase
) -> PoisonedRun:
    """A tiny model that lost answers to planted rows; see `tests/integration/poisoned.py`."""
    return make_poisoned_run(tmp_path_factory.mktemp("poisoned"), tiny_tokenizer)


@pytest.fixture(scope="session")
def poisoned_cache(tmp_path_factory: pytest.TempPathFactory) -> object:
    """A cache folder that the tests of one session share, so that the index is built once."""
    return tmp_path_factory.mktemp("cache")
