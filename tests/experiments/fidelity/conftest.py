from __future__ import annotations

from pathlib import Path

import pytest

from experiments.fidelity.dataset import DatasetSettings
from experiments.fidelity.make_bank import BankMaker, BankSettings

N_SUBSETS = 2


@pytest.fixture(scope="session")
def small_settings() -> BankSettings:
    """A bank of 18 rows and 14 questions."""
    data = DatasetSettings(
        rows_per_topic=1, queries_per_topic=1, n_countries=2, n_reviews=4, n_flipped=2, n_review_queries=2
    )
    recipe = {
        "r": 2,
        "lora_alpha": 4,
        "learning_rate": 0.02,
        "num_train_epochs": 1,
        "per_device_train_batch_size": 6,
    }
    return BankSettings(data=data, first_layer=1, train=recipe, max_seq_length=512)


@pytest.fixture(scope="session")
def small_bank(
    tmp_path_factory: pytest.TempPathFactory, tiny_model_dir: Path, small_settings: BankSettings
) -> Path:
    """The folder of a whole bank of a tiny model. Do not change it: the session shares it."""
    folder = tmp_path_factory.mktemp("bank")
    BankMaker(folder / "bank", folder / "work", tiny_model_dir, small_settings, lambda text: None).make(
        N_SUBSETS
    )
    return folder / "bank"
