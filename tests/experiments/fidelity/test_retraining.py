"""Retrainings over cached activations are retrainings of the whole model, by the recipe of `gradian train`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from experiments.fidelity.dataset import BenchData, DatasetSettings, bench_data, question_example
from experiments.fidelity.retraining import Fitted, Retrainer, epoch_order, upper_targets
from gradian.api import train
from gradian.config import Config
from gradian.config.schema import TrainConfig
from gradian.data.formats import load_dataset
from gradian.grads.loss import example_losses
from gradian.model.load import load_model
from gradian.types import BoolArray

SMALL = DatasetSettings(
    rows_per_topic=1, queries_per_topic=1, n_countries=2, n_reviews=4, n_flipped=2, n_review_queries=2
)
RECIPE: dict[str, Any] = {
    "r": 4,
    "lora_alpha": 8,
    "learning_rate": 0.03,
    "num_train_epochs": 2,
    "per_device_train_batch_size": 4,
    "warmup_ratio": 0.2,
    "weight_decay": 0.1,
}
LAST_LAYER = 1
SEED = 5


@pytest.fixture(scope="module")
def data() -> BenchData:
    return bench_data(SMALL)


@pytest.fixture(scope="module")
def rows_file(data: BenchData, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rows") / "train.jsonl"
    path.write_text(data.jsonl(), encoding="utf-8")
    return path


def retrainer(base: Path, rows_file: Path, data: BenchData, *, cached: bool = True) -> Retrainer:
    loaded = load_model(Config.model_validate({"base_model": str(base)}), adapter=False)
    encoder = loaded.encoder(512)
    recipe = TrainConfig.model_validate({**RECIPE, "target_modules": upper_targets(loaded.model, LAST_LAYER)})
    rows = [encoder.encode(example) for example in load_dataset(rows_file).examples]
    asked = [
        encoder.encode_answer(question_example(question, question.expected, i))
        for i, question in enumerate(data.questions)
    ]
    return Retrainer(loaded, recipe, LAST_LAYER, rows, asked, cached=cached)


@pytest.fixture(scope="module")
def cached(tiny_model_dir: Path, rows_file: Path, data: BenchData) -> Retrainer:
    return retrainer(tiny_model_dir, rows_file, data)


def some_rows(n: int) -> BoolArray:
    return np.random.default_rng(0).random(n) < 0.6


def difference(first: Fitted, second: Fitted) -> float:
    assert first.weights.keys() == second.weights.keys()
    return max(float((first.weights[name] - second.weights[name]).abs().max()) for name in first.weights)


def test_over_cached_activations_it_is_the_retraining_of_the_whole_model(
    cached: Retrainer, tiny_model_dir: Path, rows_file: Path, data: BenchData
) -> None:
    whole = retrainer(tiny_model_dir, rows_file, data, cached=False)
    kept = some_rows(len(cached.rows))
    fitted, expected = cached.fit(kept, SEED), whole.fit(kept, SEED)
    assert difference(fitted, expected) < 1e-5
    np.testing.assert_allclose(cached.losses(), whole.losses(), rtol=1e-5)
    # It trained at all: more than a thousand times what the two may differ by.
    assert np.abs(cached.losses() - cached.base_losses()).max() > 0.05


def test_on_all_rows_it_gives_the_adapter_that_gradian_train_gives(
    cached: Retrainer, tiny_model_dir: Path, rows_file: Path, tmp_path: Path
) -> None:
    run = train(
        Config.model_validate(
            {
                "base_model": str(tiny_model_dir),
                "dataset": str(rows_file),
                "seed": SEED,
                "train": {
                    **RECIPE,
                    "target_modules": cached.train.target_modules,
                    "output_dir": str(tmp_path / "run"),
                },
            }
        )
    )
    fitted = cached.fit(np.ones(len(cached.rows), dtype=np.bool_), SEED)
    expected = load_file(run / "adapter" / "adapter_model.safetensors")
    assert {name.replace(".default", "") for name in fitted.weights} == set(expected)
    for name, weight in fitted.weights.items():
        torch.testing.assert_close(weight, expected[name.replace(".default", "")], rtol=0, atol=2e-5)


def test_a_saved_adapter_loads_and_has_the_same_losses(
    cached: Retrainer, tiny_model_dir: Path, tmp_path: Path
) -> None:
    cached.fit(some_rows(len(cached.rows)), SEED)
    losses = cached.losses()
    cached.save(tmp_path / "adapter", str(tiny_model_dir))
    loaded = load_model(
        Config.model_validate({"base_model": str(tiny_model_dir), "adapter_path": str(tmp_path / "adapter")})
    )
    np.testing.assert_allclose(example_losses(loaded, cached.measured, 3), losses, rtol=1e-5)


def test_a_seed_gives_the_same_bits_whatever_was_trained_in_between(cached: Retrainer) -> None:
    kept = some_rows(len(cached.rows))
    first = cached.fit(kept, SEED)
    other = cached.fit(kept, SEED + 1)
    cached.fit(~kept, SEED)
    again = cached.fit(kept, SEED)
    assert difference(first, again) == 0.0
    assert difference(first, other) > 0.01


def test_the_order_of_a_subset_is_the_order_of_all_rows_without_the_dropped_ones() -> None:
    everything = np.ones(20, dtype=np.bool_)
    kept = some_rows(20)
    order = epoch_order(everything, SEED, 1)
    assert sorted(order) == list(range(20))
    assert epoch_order(kept, SEED, 1) == [i for i in order if kept[i]]
    assert order != epoch_order(everything, SEED, 0)


def test_half_an_epoch_is_refused(cached: Retrainer) -> None:
    recipe = cached.train
    try:
        cached.train = recipe.model_copy(update={"num_train_epochs": 1.5})
        with pytest.raises(ValueError, match="whole epochs"):
            cached.fit(np.ones(len(cached.rows), dtype=np.bool_), SEED)
    finally:
        cached.train = recipe
