from __future__ import annotations

import json
from pathlib import Path

import pytest

from gradian.runs.artifact import RunArtifact
from gradian.runs.read import read_run_folder

LEAST = "base_model: acme/tiny\nlearning_rate: 2e-4\nmicro_batch_size: 2\n"


def run_of(folder: Path, text: str, **state: int) -> RunArtifact:
    (folder / "config.yml").write_text(text)
    (folder / "trainer_state.json").write_text(json.dumps({"log_history": [], **state}))
    return read_run_folder(folder)


def test_what_a_config_leaves_out_is_axolotls_default_and_named_so(tmp_path: Path) -> None:
    run = run_of(tmp_path, LEAST)
    hyper = run.hyper

    assert (run.trainer, run.base_model) == ("axolotl", "acme/tiny")
    assert run.sources["base_model"] == "config.yml: base_model"
    assert (hyper.learning_rate, hyper.per_device_batch) == (2e-4, 2)
    assert (hyper.epochs, hyper.grad_accum, hyper.max_length, hyper.overlong_rows) == (1.0, 1, 512, "drop")
    assert (hyper.warmup_ratio, hyper.train_on_inputs, hyper.max_grad_norm) == (0.03, False, 1.0)
    assert {
        run.sources[name] for name in ("epochs", "grad_accum", "max_length", "overlong_rows", "warmup_ratio")
    } == {"default of axolotl"}
    assert run.lora is None


@pytest.mark.parametrize(("total", "steps"), [(1000, 30), (10_000, 100), (40, 2), (20, 0)])
def test_the_default_warmup_is_three_percent_of_the_steps_and_at_most_a_hundred(
    tmp_path: Path, total: int, steps: int
) -> None:
    assert run_of(tmp_path, LEAST, max_steps=total).hyper.warmup_steps == steps


def test_the_settings_of_a_config_are_read(tmp_path: Path) -> None:
    run = run_of(
        tmp_path,
        LEAST
        + "batch_size: 16\nadapter: qlora\nval_set_size: 0\nexcess_length_strategy: truncate\nmax_steps: 50\n"
        + "batch_flattening: true\nliger_fused_linear_cross_entropy: true\ntrain_on_inputs: true\nwarmup_steps: 7\n"
        + "lora_r: 16\nlora_alpha: 32\nlora_target_linear: true\npeft_use_rslora: true\nspecial_tokens: {pad_token: <p>}\n",
    )
    hyper = run.hyper

    assert (hyper.grad_accum, hyper.effective_batch, hyper.load_in_4bit, hyper.eval_strategy) == (
        8,
        16,
        True,
        "no",
    )
    assert (hyper.overlong_rows, hyper.max_steps, hyper.padding_free) == ("truncate", 50, True)
    assert (hyper.use_liger_kernel, hyper.train_on_inputs, hyper.warmup_steps) == (True, True, 7)
    assert hyper.pad_token == "<p>"
    assert run.lora is not None
    assert (run.lora.r, run.lora.alpha, run.lora.target_modules) == (16, 32, "all-linear")
    assert run.effective_learning_rate == pytest.approx(2e-4 * 32 / 4)


def test_the_resolved_config_in_the_log_is_read(tmp_path: Path) -> None:
    settings = json.dumps(
        {"base_model": "a", "micro_batch_size": 3, "sequence_len": 99, "learning_rate": 1e-4}, indent=2
    )
    (tmp_path / "debug.log").write_text(
        f"[INFO] config: see below\n[INFO] config:\n{settings}\n[INFO] go\n" + "x" * 999
    )
    hyper = read_run_folder(tmp_path).hyper

    assert (hyper.learning_rate, hyper.per_device_batch, hyper.max_length) == (1e-4, 3, 99)


def test_a_config_above_counts_when_it_names_the_folder_or_is_the_only_one(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "tokens_state.json").write_text("{}")
    (tmp_path / "a.yaml").write_text(LEAST.replace("2e-4", "1e-4"))
    assert read_run_folder(folder).hyper.learning_rate == 1e-4
    (tmp_path / "b.yaml").write_text(LEAST)
    assert read_run_folder(folder).hyper.learning_rate is None
    (tmp_path / "c.yaml").write_text(LEAST.replace("2e-4", "3e-4") + "output_dir: ./out/run\n")
    assert read_run_folder(folder).hyper.learning_rate == 3e-4


def test_a_config_above_says_nothing_of_another_trainers_run(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "README.md").write_text("---\ntags: [trl]\n---\n")
    (tmp_path / "a.yaml").write_text(LEAST)
    run = read_run_folder(folder)
    assert (run.trainer, run.hyper.learning_rate) == ("trl", None)
