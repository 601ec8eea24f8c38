from __future__ import annotations

import json
from pathlib import Path

import pytest

from gradian.runs.artifact import RunArtifact
from gradian.runs.read import read_run_folder

LEAST = "model_name_or_path: acme/tiny\nstage: sft\nfinetuning_type: lora\nlearning_rate: 1.0e-4\n"


def run_of(folder: Path, text: str, name: str = "training_args.yaml") -> RunArtifact:
    (folder / name).write_text(text)
    return read_run_folder(folder)


@pytest.mark.parametrize("name", ["training_args.yaml", "llamafactory_args.yaml"])
def test_what_the_arguments_leave_out_is_a_default_and_named_so(tmp_path: Path, name: str) -> None:
    run = run_of(tmp_path, LEAST, name)
    hyper = run.hyper

    assert (run.trainer, run.base_model, run.has_log) == ("llamafactory", "acme/tiny", False)
    assert (hyper.learning_rate, hyper.epochs, hyper.per_device_batch, hyper.grad_accum) == (1e-4, 3.0, 8, 1)
    assert (hyper.max_length, hyper.overlong_rows, hyper.train_on_inputs) == (2048, "truncate", False)
    assert (hyper.warmup_steps, hyper.max_grad_norm, hyper.seed) == (0, 1.0, 42)
    assert run.sources["max_length"] == "default of LLaMA-Factory"
    assert run.sources["epochs"] == "default of transformers"
    assert run.sources["learning_rate"] == f"{name}: learning_rate"
    assert run.lora is not None
    assert (run.lora.r, run.lora.alpha, run.lora.target_modules) == (8, 16, "all-linear")


def test_the_arguments_are_read(tmp_path: Path) -> None:
    run = run_of(
        tmp_path,
        LEAST
        + "cutoff_len: 1024\nneat_packing: true\npure_bf16: true\nquantization_bit: 4\nenable_liger_kernel: true\n"
        + "train_on_prompt: true\nwarmup_ratio: 0.1\nnum_train_epochs: 2\nlora_rank: 32\nlora_target: q_proj,v_proj\n"
        + "gradient_accumulation_steps: 4\nper_device_train_batch_size: 1\nuse_dora: true\n",
    )
    hyper = run.hyper

    assert (hyper.max_length, hyper.packing, hyper.packing_strategy) == (1024, True, "neat")
    assert (hyper.bf16, hyper.load_in_4bit, hyper.use_liger_kernel, hyper.train_on_inputs) == (True,) * 4
    assert (hyper.warmup_ratio, hyper.warmup_steps, hyper.epochs, hyper.effective_batch) == (
        0.1,
        None,
        2.0,
        4,
    )
    assert run.lora is not None
    assert (run.lora.r, run.lora.alpha, run.lora.target_modules) == (32, 64, ("q_proj", "v_proj"))
    assert run.lora.use_dora


def test_its_own_log_is_read_where_the_trainers_state_is_missing(tmp_path: Path) -> None:
    rows = [
        {"current_steps": 10, "total_steps": 30, "loss": 2.0, "lr": 1e-4, "epoch": 0.5},
        {"current_steps": 20, "total_steps": 30, "loss": 1.5, "learning_rate": 5e-5},
        {"current_steps": 20, "total_steps": 30, "eval_loss": 1.4},
    ]
    text = "".join(json.dumps(row) + "\n" for row in rows) + '{"current_st'
    run = run_of(tmp_path, text, "trainer_log.jsonl")

    assert (run.trainer, run.has_log, run.global_step, run.total_steps) == ("llamafactory", True, 20, 30)
    assert [(row.step, row.loss, row.learning_rate) for row in run.train_log] == [
        (10, 2.0, 1e-4),
        (20, 1.5, 5e-5),
    ]
    assert [(row.step, row.loss) for row in run.eval_log] == [(20, 1.4)]
    assert run.hyper.max_length is None
