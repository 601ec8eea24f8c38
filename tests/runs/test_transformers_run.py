from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gradian.runs.read import read_run_folder
from gradian.runs.training_args_bin import PickledObject
from gradian.runs.transformers_run import settings_of

CARD = """---
library_name: peft
base_model: acme/tiny
tags:
- generated_from_trainer
---

### Training hyperparameters

The following hyperparameters were used during training:
- learning_rate: 0.0002
- train_batch_size: 4
- seed: 7
- distributed_type: multi-GPU
- num_devices: 2
- gradient_accumulation_steps: 8
- lr_scheduler_type: cosine
{warmup}
- num_epochs: 2.0

### Framework versions

- PEFT 0.15.1
- Transformers 4.51.3
- Pytorch 2.6.0+cu124
"""


@pytest.mark.parametrize(
    ("arguments", "steps", "ratio"),
    [
        ({"warmup_steps": 0.1}, None, 0.1),  # 5.x
        ({"warmup_steps": 10}, 10, None),
        ({"warmup_steps": 0, "warmup_ratio": 0.1}, None, 0.1),  # 4.x
        ({"warmup_steps": 10, "warmup_ratio": 0.1}, 10, None),
        ({"warmup_steps": 0, "warmup_ratio": 0.0}, 0, None),
        ({"warmup_steps": 0}, 0, None),
        ({"warmup_steps": 0, "warmup_ratio": None}, 0, None),
        ({"warmup_ratio": 0.05}, None, 0.05),
        ({}, None, None),
    ],
)
def test_the_warmup_is_steps_or_a_share_whichever_version_wrote_it(
    arguments: dict[str, Any], steps: int | None, ratio: float | None
) -> None:
    values = settings_of(arguments, "f").values
    assert (values.get("warmup_steps"), values.get("warmup_ratio")) == (steps, ratio)


@pytest.mark.parametrize(
    ("n_gpu", "processes", "devices"), [(0, 1, 1), (1, 4, 4), (3, 1, 3), (None, 2, 2), (None, None, None)]
)
def test_devices_that_share_a_step_are_counted(
    n_gpu: int | None, processes: int | None, devices: int | None
) -> None:
    arguments: dict[str, Any] = {"per_device_train_batch_size": 2}
    if n_gpu is not None:
        arguments["_n_gpu"] = n_gpu
    if processes is not None:
        arguments["distributed_state"] = PickledObject(
            "accelerate.state", "PartialState", {"num_processes": processes}
        )
    assert settings_of(arguments, "f").values.get("n_devices") == devices


def test_old_names_of_arguments_are_read() -> None:
    values = settings_of({"evaluation_strategy": "epoch", "use_liger": True, "max_steps": -1}, "f").values
    assert values == {"eval_strategy": "epoch", "use_liger_kernel": True, "max_steps": None}


@pytest.mark.parametrize(
    ("warmup", "steps", "ratio"),
    [("- lr_scheduler_warmup_ratio: 0.03", None, 0.03), ("- lr_scheduler_warmup_steps: 20", 20, None)],
)
def test_a_model_card_alone_gives_the_settings_that_it_lists(
    tmp_path: Path, warmup: str, steps: int | None, ratio: float | None
) -> None:
    (tmp_path / "README.md").write_text(CARD.format(warmup=warmup))
    run = read_run_folder(tmp_path)
    hyper = run.hyper

    assert (run.trainer, run.base_model) == ("transformers", "acme/tiny")
    assert (hyper.learning_rate, hyper.epochs, hyper.seed, hyper.scheduler) == (2e-4, 2.0, 7, "cosine")
    assert (hyper.per_device_batch, hyper.grad_accum, hyper.n_devices, hyper.effective_batch) == (4, 8, 2, 64)
    assert (hyper.warmup_steps, hyper.warmup_ratio) == (steps, ratio)
    name = "warmup_ratio" if ratio else "warmup_steps"
    assert run.sources[name] == f"README.md: lr_scheduler_{name}"
    assert run.versions == {"peft": "0.15.1", "transformers": "4.51.3", "torch": "2.6.0+cu124"}


@pytest.mark.parametrize(
    ("rates", "peak"), [([1e-5, 1e-4, 5e-5], 1e-4), ([1e-5, 1e-4], None), ([1e-4], None)]
)
def test_without_arguments_the_peak_of_the_logged_rate_counts_once_it_has_fallen(
    tmp_path: Path, rates: list[float], peak: float | None
) -> None:
    rows = [{"step": step, "loss": 1.0, "learning_rate": rate} for step, rate in enumerate(rates, 1)]
    (tmp_path / "trainer_state.json").write_text(json.dumps({"log_history": rows, "train_batch_size": 8}))
    run = read_run_folder(tmp_path)

    assert run.hyper.learning_rate == peak
    assert run.hyper.per_device_batch == 8
    assert run.sources["per_device_batch"] == "trainer_state.json: train_batch_size"
