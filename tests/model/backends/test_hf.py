from __future__ import annotations

import json
import os
import random
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from gradian.config import Config
from gradian.data.chat import ChatEncoder, load_tokenizer
from gradian.data.collate import pad_batch
from gradian.data.formats import load_dataset
from gradian.data.ids import dataset_hash
from gradian.errors import ConfigError, DataError, MissingExtraError, RunError, UnknownNameError
from gradian.model.backends.base import run_training, training_backends
from gradian.model.backends.hf import HfBackend
from gradian.model.load import load_model
from gradian.runs.gradian_run import read_run
from tests.versions import TRANSFORMERS_4

ROWS = [{"prompt": f"say {word}", "completion": word * 2} for word in ("ab", "cde", "f", "gh", "ijk")]


@pytest.fixture
def train_file(tmp_path: Path) -> Path:
    return write_rows(tmp_path / "train.jsonl", ROWS)


def write_rows(path: Path, rows: list[dict[str, str]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def settings(model: Path, data: Path, out: Path, **train: Any) -> Config:
    return Config.model_validate(
        {
            "base_model": str(model),
            "dataset": str(data),
            "seed": 5,
            "train": {
                "output_dir": str(out),
                "r": 2,
                "learning_rate": 1e-2,
                "num_train_epochs": 2,
                "max_seq_length": 64,
                **train,
            },
        }
    )


def adapter_bytes(run: Path) -> bytes:
    return (run / "adapter" / "adapter_model.safetensors").read_bytes()


def test_a_run_folder_holds_the_adapter_the_state_and_the_record(
    tmp_path: Path, tiny_model_dir: Path, train_file: Path
) -> None:
    run = run_training(settings(tiny_model_dir, train_file, tmp_path / "run"))

    assert sorted(path.name for path in run.iterdir()) == [
        "adapter",
        "gradian_run.json",
        "trainer_state.json",
    ]
    record = read_run(run)
    assert record is not None
    assert record.base_model == str(tiny_model_dir.resolve())
    assert record.adapter_path == str(run / "adapter")
    assert record.dataset.hash == dataset_hash(load_dataset(train_file).examples)
    assert (record.dataset.path, record.dataset.n, record.seed) == (str(train_file), 5, 5)
    assert record.train["learning_rate"] == 1e-2
    assert record.lora["r"] == 2
    assert record.steps == 6
    losses = [row["loss"] for row in record.log_history if "loss" in row]
    assert len(losses) == 6
    assert {"torch", "transformers", "peft"} <= set(record.versions)
    state = json.loads((run / "trainer_state.json").read_text())
    assert state["global_step"] == 6


def test_what_it_trained_loads_for_attribution_and_has_learned(
    tmp_path: Path, tiny_model_dir: Path, train_file: Path
) -> None:
    config = settings(tiny_model_dir, train_file, tmp_path / "run", num_train_epochs=6, learning_rate=5e-2)
    run = run_training(config)

    loaded = load_model(config.model_copy(update={"adapter_path": str(run / "adapter")}))
    encoder = loaded.encoder(64)
    batch = pad_batch([encoder.encode(row) for row in load_dataset(train_file).examples], pad_id=0)
    tokens = torch.from_numpy(batch.input_ids)
    inputs = {
        "input_ids": tokens,
        "attention_mask": torch.from_numpy(batch.attention_mask),
        "labels": tokens.masked_fill(~torch.from_numpy(batch.supervised), -100),
    }
    tuned = loaded.model(**inputs).loss.item()
    with loaded.adapter_disabled():
        base = loaded.model(**inputs).loss.item()
    assert tuned < base - 0.1


def test_the_training_mask_is_the_attribution_mask(
    tmp_path: Path, tiny_model_dir: Path, train_file: Path
) -> None:
    # One step over the whole file at a vanishing rate: the logged loss is the base model's loss under our mask.
    config = settings(
        tiny_model_dir,
        train_file,
        tmp_path / "run",
        per_device_train_batch_size=5,
        num_train_epochs=1,
        learning_rate=1e-9,
    )
    record = read_run(run_training(config))
    assert record is not None

    loaded = load_model(config, adapter=False)
    encoder = ChatEncoder(load_tokenizer(str(tiny_model_dir)), 64)
    total, count = 0.0, 0
    for row in load_dataset(train_file).examples:
        encoded = encoder.encode(row)
        ids = torch.from_numpy(encoded.input_ids)[None]
        logits = loaded.model(input_ids=ids).logits[0, :-1].double()
        picked = torch.log_softmax(logits, -1).gather(1, ids[0, 1:, None])[:, 0]
        total -= picked[torch.from_numpy(encoded.supervised[1:])].sum().item()
        count += encoded.n_supervised
    assert record.log_history[0]["loss"] == pytest.approx(total / count, rel=1e-5)


def test_two_trainings_give_the_same_bytes_and_another_seed_gives_others(
    tmp_path: Path, tiny_model_dir: Path, train_file: Path
) -> None:
    first = run_training(settings(tiny_model_dir, train_file, tmp_path / "a", lora_dropout=0.1))
    torch.rand(3)
    second = run_training(settings(tiny_model_dir, train_file, tmp_path / "b", lora_dropout=0.1))
    config = settings(tiny_model_dir, train_file, tmp_path / "c", lora_dropout=0.1)
    other = run_training(config.model_copy(update={"seed": 6}))

    assert adapter_bytes(first) == adapter_bytes(second)
    assert adapter_bytes(first) != adapter_bytes(other)


def test_the_adapters_settings_do_not_depend_on_the_hash_seed(
    tmp_path: Path, tiny_model_dir: Path, train_file: Path
) -> None:
    run = run_training(settings(tiny_model_dir, train_file, tmp_path / "run"))
    saved = json.loads((run / "adapter" / "adapter_config.json").read_text())
    assert saved["target_modules"] == sorted(saved["target_modules"])
    assert len(saved["target_modules"]) > 1


def test_a_disk_that_refuses_a_file_is_a_typed_error_and_leaves_no_run(
    tmp_path: Path, tiny_model_dir: Path, train_file: Path
) -> None:
    config = settings(tiny_model_dir, train_file, tmp_path / "run")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    # Smaller than the adapter, whose library has errors of its own.
    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, hard))
    try:
        with pytest.raises(RunError, match="cannot be written") as caught:
            run_training(config)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.where == str(tmp_path / "run")
    assert "File too large" in str(caught.value)
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]
    run_training(config)


def test_training_leaves_the_callers_random_numbers_alone(
    tmp_path: Path, tiny_model_dir: Path, train_file: Path
) -> None:
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    expected = (random.random(), np.random.rand(), torch.rand(1).item())
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)

    run_training(settings(tiny_model_dir, train_file, tmp_path / "run"))

    assert (random.random(), np.random.rand(), torch.rand(1).item()) == expected


def test_it_says_nothing_on_standard_output(
    tmp_path: Path, tiny_model_dir: Path, train_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_training(settings(tiny_model_dir, train_file, tmp_path / "run"))

    assert capsys.readouterr().out == ""


def test_a_finished_run_of_the_same_inputs_is_not_trained_again(
    tmp_path: Path, tiny_model_dir: Path, train_file: Path
) -> None:
    config = settings(tiny_model_dir, train_file, tmp_path / "run")
    run = run_training(config)
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}

    assert run_training(config) == run
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before


@pytest.mark.parametrize("change", ["seed", "rate", "data"])
def test_a_finished_run_of_other_inputs_is_not_overwritten(
    tmp_path: Path, tiny_model_dir: Path, train_file: Path, change: str
) -> None:
    config = settings(tiny_model_dir, train_file, tmp_path / "run")
    run = run_training(config)
    before = adapter_bytes(run)
    if change == "seed":
        config = config.model_copy(update={"seed": 6})
    elif change == "rate":
        config = settings(tiny_model_dir, train_file, tmp_path / "run", learning_rate=2e-2)
    else:
        write_rows(train_file, ROWS[::-1])

    with pytest.raises(RunError, match="finished run of other inputs") as caught:
        run_training(config)
    named = {"seed": "seed: 5 there, 6 here", "rate": "train.learning_rate: 0.01 there", "data": "dataset: "}
    assert named[change] in str(caught.value)
    assert adapter_bytes(run) == before


def test_a_folder_with_other_files_is_left_alone(
    tmp_path: Path, tiny_model_dir: Path, train_file: Path
) -> None:
    out = tmp_path / "run"
    out.mkdir()
    (out / "notes.txt").write_text("mine")

    with pytest.raises(RunError, match="holds no finished run"):
        run_training(settings(tiny_model_dir, train_file, out))
    assert [path.name for path in out.iterdir()] == ["notes.txt"]


def test_an_empty_folder_is_filled(tmp_path: Path, tiny_model_dir: Path, train_file: Path) -> None:
    (tmp_path / "run").mkdir()

    run = run_training(settings(tiny_model_dir, train_file, tmp_path / "run"))

    assert read_run(run) is not None


@pytest.mark.parametrize(("save_steps", "expected"), [(0, [3, 6]), (2, [2, 4, 6])])
def test_checkpoints_are_adapters_once_an_epoch_or_every_so_many_steps(
    tmp_path: Path, tiny_model_dir: Path, train_file: Path, save_steps: int, expected: list[int]
) -> None:
    run = run_training(
        settings(
            tiny_model_dir,
            train_file,
            tmp_path / "run",
            save_checkpoints=True,
            save_steps=save_steps,
            warmup_ratio=0.0,
        )
    )

    record = read_run(run)
    assert record is not None
    assert [saved.step for saved in record.checkpoints] == expected
    for saved in record.checkpoints:
        assert {path.suffix for path in (run / saved.path).iterdir()} <= {".json", ".safetensors", ".md"}
        # The linear schedule: the rate that step k used is (6 - (k - 1)) / 6 of the peak.
        assert saved.learning_rate == pytest.approx(1e-2 * (7 - saved.step) / 6)
    last = load_file(run / record.checkpoints[-1].path / "adapter_model.safetensors")
    final = load_file(run / "adapter" / "adapter_model.safetensors")
    assert all(torch.equal(last[name], final[name]) for name in final)


def test_without_asking_no_checkpoint_is_kept(tmp_path: Path, tiny_model_dir: Path, train_file: Path) -> None:
    run = run_training(settings(tiny_model_dir, train_file, tmp_path / "run", save_steps=1))

    assert not list(run.glob("checkpoint-*"))


@pytest.mark.skipif(TRANSFORMERS_4, reason="older trainers drop the last part of an epoch")
def test_the_last_part_of_an_epoch_counts_as_a_step(
    tmp_path: Path, tiny_model_dir: Path, train_file: Path
) -> None:
    run = run_training(
        settings(
            tiny_model_dir, train_file, tmp_path / "run", gradient_accumulation_steps=2, num_train_epochs=1
        )
    )

    record = read_run(run)
    assert record is not None
    assert record.steps == 2


def test_rows_without_a_target_are_left_out_and_counted(tmp_path: Path, tiny_model_dir: Path) -> None:
    rows = [*ROWS, {"prompt": "x" * 100, "completion": "cut off"}]
    data = write_rows(tmp_path / "train.jsonl", rows)

    record = read_run(run_training(settings(tiny_model_dir, data, tmp_path / "run")))

    assert record is not None
    assert (record.dataset.n, record.dataset.n_trained) == (6, 5)


def test_a_file_without_any_target_is_refused(tmp_path: Path, tiny_model_dir: Path) -> None:
    data = write_rows(tmp_path / "train.jsonl", [{"prompt": "x" * 100, "completion": "cut off"}])

    with pytest.raises(DataError, match="no row has a token to learn from"):
        run_training(settings(tiny_model_dir, data, tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_a_training_that_diverges_leaves_no_run(
    tmp_path: Path, tiny_model_dir: Path, train_file: Path
) -> None:
    config = settings(tiny_model_dir, train_file, tmp_path / "run", learning_rate=1e30, max_grad_norm=0)

    with pytest.raises(RunError, match="diverged"):
        run_training(config)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("extra", "says"),
    [
        ({"learning_rate": 1.0}, "Gradian's to set"),
        ({"adam_beta": 0.5}, "no such argument"),
        ({"optim": "nonsense"}, "refuses its arguments"),
    ],
)
def test_a_wrong_extra_argument_is_named(
    tmp_path: Path, tiny_model_dir: Path, train_file: Path, extra: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        run_training(settings(tiny_model_dir, train_file, tmp_path / "run", extra=extra))
    assert not (tmp_path / "run").exists()


def test_an_extra_argument_reaches_the_trainer(
    tmp_path: Path, tiny_model_dir: Path, train_file: Path
) -> None:
    run = run_training(settings(tiny_model_dir, train_file, tmp_path / "run", extra={"max_steps": 1}))

    record = read_run(run)
    assert record is not None
    assert record.steps == 1


def test_four_bit_training_is_refused(tmp_path: Path, tiny_model_dir: Path, train_file: Path) -> None:
    with pytest.raises(ConfigError, match="load_in_4bit"):
        run_training(settings(tiny_model_dir, train_file, tmp_path / "run", load_in_4bit=True))


def test_missing_settings_are_named(tmp_path: Path, tiny_model_dir: Path, train_file: Path) -> None:
    config = settings(tiny_model_dir, train_file, tmp_path / "run")

    with pytest.raises(ConfigError, match="base_model is not set"):
        run_training(config.model_copy(update={"base_model": ""}))
    with pytest.raises(ConfigError, match="dataset is not set"):
        run_training(config.model_copy(update={"dataset": None}))
    with pytest.raises(UnknownNameError, match="training backend"):
        run_training(config, backend="hff")


def test_without_accelerate_the_install_command_is_given(
    tmp_path: Path, tiny_model_dir: Path, train_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)

    with pytest.raises(MissingExtraError, match=r'pip install "gradian-ml\[train\]"'):
        run_training(settings(tiny_model_dir, train_file, tmp_path / "run"))


def test_the_backend_is_registered_and_can_run_here() -> None:
    assert isinstance(training_backends()["hf"], HfBackend)
    assert training_backends()["hf"].unavailable is None


def test_target_modules_that_the_model_has_not_are_the_users_error(
    tmp_path: Path, tiny_model_dir: Path, train_file: Path
) -> None:
    config = settings(tiny_model_dir, train_file, tmp_path / "run", target_modules=["nothere"])
    with pytest.raises(ConfigError, match="nothere") as caught:
        run_training(config)
    assert caught.value.where == "train.target_modules"
    assert not (tmp_path / "run").exists()


KILLED = """
import sys
from pathlib import Path
from gradian.config import Config
from gradian.model.backends import base, hf
config = Config.model_validate_json(Path(sys.argv[1]).read_text())
class Slow:
    unavailable = None
    def fit(self, job):
        (job.folder / "adapter").mkdir()
        (job.folder / "adapter" / "adapter_model.safetensors").write_bytes(b"half")
        print("training", flush=True)
        sys.stdin.read()
base.BACKENDS.register("slow")(Slow())
base.run_training(config, backend="slow")
"""


@pytest.mark.slow
def test_a_killed_training_leaves_nothing_that_looks_finished_and_locks_out_others_while_it_lives(
    tmp_path: Path, tiny_model_dir: Path, train_file: Path
) -> None:
    config = settings(tiny_model_dir, train_file, tmp_path / "run")
    (tmp_path / "config.json").write_text(config.model_dump_json())
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path / "config.json")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"training\n"
        with pytest.raises(RunError, match="another process"):
            run_training(config)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    finally:
        process.kill()
        process.communicate()

    assert not (tmp_path / "run").exists()
    assert read_run(run_training(config)) is not None
    assert not list(tmp_path.glob(".run.gradian-partial"))
