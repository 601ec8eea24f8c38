from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from gradian.config import Config, dump_config

# The published defaults, section by section: another value here is a change of everybody's results.
PUBLISHED: dict[str, dict[str, Any]] = {
    "": {
        "seed": 1234,
        "device": "auto",
        "dtype": "auto",
        "base_model": "",
        "tokenizer": None,
        "adapter_path": None,
        "dataset": None,
        "eval_dataset": None,
        "run_dir": None,
        "cache_dir": ".gradian",
        "trust_remote_code": False,
        "attn_implementation": "eager",
    },
    "grads": {
        "strategy": "hooks",
        "loss_reduction": "mean",
        "normalization": "none",
        "batch_size": 4,
        "max_seq_length": 1024,
        "module_filter": None,
        "block_granularity": "module",
        "projection_dim": None,
        "projection_kind": "countsketch",
        "projection_seed": 0,
        "storage_dtype": "float32",
        "chunk_size": 256,
    },
    "engine": {
        "name": "datainf",
        "lambda_scale": 0.1,
        "lambda_override": None,
        "normalize_query": False,
        "relative": False,
        "threads": None,
        "gram": "auto",
    },
    "evaluation": {
        "max_new_tokens": 32,
        "batch_size": 8,
        "n_bootstrap": 2000,
        "ci_level": 0.95,
        "metric": "exact_match",
        "greedy": True,
        "require_significant": True,
        "query_signal": "auto",
    },
    "clustering": {
        "method": "auto",
        "n_clusters": 8,
        "min_cluster_size": 5,
        "embed_model": "sentence-transformers/all-MiniLM-L6-v2",
        "embed_backend": "auto",
        "max_features": 4096,
        "svd_dim": 64,
        "top_examples_per_cluster": 5,
        "label_top_terms": 4,
    },
    "train": {
        "backend": "hf",
        "base_model": "",
        "output_dir": "runs/run",
        "r": 8,
        "lora_alpha": 16,
        "lora_dropout": 0.0,
        "target_modules": None,
        "learning_rate": 0.0002,
        "num_train_epochs": 1.0,
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 1,
        "warmup_ratio": 0.03,
        "lr_scheduler_type": "linear",
        "max_seq_length": 512,
        "logging_steps": 1,
        "save_steps": 0,
        "save_checkpoints": False,
        "max_grad_norm": 1.0,
        "weight_decay": 0.0,
        "load_in_4bit": False,
        "extra": {},
    },
}


@pytest.mark.parametrize("section", PUBLISHED)
def test_fields_and_defaults_are_the_published_ones(section: str) -> None:
    values = dump_config(Config())
    if section:
        values = values[section]
    else:
        # Thresholds of the audit change no score, and are the checks' own business.
        values = {name: value for name, value in values.items() if name not in {*PUBLISHED, "checks"}}
    assert values == PUBLISHED[section]
    assert list(values) == list(PUBLISHED[section])


def models() -> list[type[BaseModel]]:
    found: list[type[BaseModel]] = [Config]
    for model in found:
        kinds = [field.annotation for field in model.model_fields.values()]
        found += [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
    return found


def test_every_setting_is_explained() -> None:
    unexplained = [
        f"{model.__name__}.{name}"
        for model in models()
        for name, field in model.model_fields.items()
        if not field.description and field.annotation not in models()
    ]
    assert unexplained == []


def test_a_config_cannot_be_changed() -> None:
    with pytest.raises(ValidationError):
        Config().seed = 2  # type: ignore[misc]


def test_a_path_object_is_accepted_as_a_path() -> None:
    assert Config(dataset=Path("a") / "b.jsonl").dataset == str(Path("a") / "b.jsonl")
    assert Config(adapter=Path("x")).adapter_path == "x"


@pytest.mark.parametrize(
    "settings",
    [
        {"seed": -1},
        {"seed": 2**32},
        {"seed": "1234"},
        {"seed": True},
        {"seed": 1.5},
        {"device": "gpu"},
        {"device": "cuda:x"},
        {"dtype": "int8"},
        {"trust_remote_code": "yes"},
        {"grads": {"batch_size": 0}},
        {"grads": {"batch_size": 2.0}},
        {"grads": {"max_seq_length": 1}},
        {"grads": {"module_filter": "("}},
        {"grads": {"projection_dim": 0}},
        {"engine": {"lambda_scale": 0}},
        {"engine": {"lambda_scale": float("nan")}},
        {"engine": {"lambda_scale": "much"}},
        {"engine": {"lambda_override": float("inf")}},
        {"evaluation": {"ci_level": 1}},
        {"evaluation": {"n_bootstrap": 99}},
        {"evaluation": {"metric": "bleu"}},
        {"clustering": {"n_clusters": 1}},
        {"train": {"backend": "trl"}},
        {"train": {"learning_rate": 0}},
        {"train": {"lora_dropout": 1.0}},
        {"train": {"target_modules": "q_proj"}},
        {"grads": 3},
    ],
    ids=str,
)
def test_an_impossible_value_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Config.model_validate(settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"seed": 0},
        {"seed": 2**32 - 1},
        {"device": "cuda:1"},
        {"device": "mps"},
        {"grads": {"module_filter": r"layers\.1[0-9]\."}},
        {"engine": {"lambda_scale": "2e-4"}},
        {"engine": {"lambda_scale": 1}},
        {"train": {"target_modules": ["q_proj"]}},
        {"train": {"max_grad_norm": 0}},
        {"train": {"extra": {"anything": [1, "two"]}}},
    ],
    ids=str,
)
def test_a_value_at_the_edge_is_taken(settings: dict[str, Any]) -> None:
    Config.model_validate(settings)


def test_a_number_written_without_a_point_is_that_number() -> None:
    assert Config.model_validate({"train": {"learning_rate": "2e-4"}}).train.learning_rate == 2e-4
