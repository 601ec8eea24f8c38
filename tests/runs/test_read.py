"""Run folders to one record: the shared cases, both major versions of transformers, and folders that resist."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import shutil
from pathlib import Path

import pytest

from gradian.errors import RunError
from gradian.runs.artifact import Resume, RunArtifact, Unread
from gradian.runs.read import read_run_folder

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
CASES = FIXTURES / "cases"
RUNS = FIXTURES / "runs"
HOSTILE = CASES / "47-training-args-bin-hostile-or-unimportable"
EXECUTED = Path("/tmp/GRADIAN_PICKLE_WAS_EXECUTED")


def test_case_29_a_run_of_trl_1_on_transformers_5() -> None:
    run = read_run_folder(CASES / "29-run-trl1-transformers5" / "run")
    hyper = run.hyper

    assert run.trainer == "trl"
    assert (hyper.learning_rate, hyper.epochs, hyper.max_steps) == (2e-4, 1, None)
    assert (hyper.per_device_batch, hyper.grad_accum, hyper.effective_batch) == (2, 2, 4)
    assert (hyper.warmup_ratio, hyper.warmup_steps) == (0.1, None)
    assert (hyper.max_length, hyper.overlong_rows, hyper.packing) == (128, "truncate", False)
    assert (hyper.assistant_only_loss, hyper.completion_only_loss) == (True, None)
    assert (hyper.seed, hyper.fp16, hyper.bf16, hyper.max_grad_norm) == (3407, False, False, 0.3)
    assert (hyper.scheduler, hyper.optimizer, hyper.eval_strategy) == ("cosine", "adamw_torch_fused", "steps")
    assert hyper.pad_token == "<|pad|>"
    assert run.lora is not None
    assert (run.lora.r, run.lora.alpha, run.lora.dropout) == (8, 16, 0.05)
    assert (run.lora.n_modules, run.lora.n_parameters, run.lora.zero_b) == (14, 4352, ())
    assert run.effective_learning_rate == pytest.approx(4e-4)
    assert (run.base_model, run.global_step, run.total_steps) == ("tinybase_run5", 6, 6)
    assert (len(run.train_log), len(run.eval_log), run.eval_sets) == (3, 1, ("",))
    assert run.train_log[0].loss == 5.605964183807373
    assert run.summary["train_loss"] == pytest.approx(5.602, abs=5e-4)
    assert run.sources["warmup_ratio"] == "training_args.bin: warmup_steps"
    assert run.versions == {"peft": "0.21.2"}
    assert run.unread == ()


def test_case_31_nan_and_infinity_in_every_spelling_are_numbers() -> None:
    run = read_run_folder(CASES / "31-trainer-state-nan" / "run")

    assert (len(run.train_log), len(run.eval_log)) == (4, 1)
    norms = [row.grad_norm for row in run.train_log]
    assert [row.loss for row in run.train_log][:3] == [2.1, 0.0, 0.0]
    assert norms[0] == 1.2
    assert [math.isnan(value) for value in norms[1:3] if value is not None] == [True, True]
    assert norms[3] == math.inf
    assert math.isnan(run.eval_log[0].loss or 0)
    assert (run.trainer, run.has_log, run.hyper.per_device_batch) == ("transformers", True, 2)


def test_case_32_the_newest_checkpoint_by_number_and_the_resume_that_its_log_shows() -> None:
    run = read_run_folder(CASES / "32-checkpoints-only-resumed" / "run")

    assert run.checkpoint == "checkpoint-1000"
    assert run.resumes == (Resume(from_step=900, overlapping=(900,), batch_sizes=(2, 4)),)
    assert run.eval_sets == ("math", "chat")
    assert [row.step for row in run.train_log] == [500, 900, 950, 1000]
    assert run.train_log[1].loss == 0.91
    assert (run.train_log[-1].loss, run.train_log[-1].learning_rate) == (0.8, None)
    assert run.hyper.per_device_batch == 4
    assert run.unread == ()


@pytest.mark.parametrize("from_the_card", [True, False])
def test_case_34_axolotl_from_the_model_card_or_the_config_in_the_folder_above(
    from_the_card: bool, tmp_path: Path
) -> None:
    shutil.copytree(CASES / "34-axolotl-run", tmp_path / "case")
    folder = tmp_path / "case" / "run"
    if not from_the_card:
        (folder / "README.md").unlink()
        (folder / "debug.log").unlink()
    run = read_run_folder(folder)
    hyper = run.hyper

    assert (run.trainer, run.checkpoint) == ("axolotl", "checkpoint-300")
    assert (hyper.learning_rate, hyper.epochs, hyper.max_steps) == (2e-4, 3, None)
    assert (hyper.per_device_batch, hyper.grad_accum, hyper.effective_batch) == (2, 2, 4)
    assert (hyper.warmup_ratio, hyper.warmup_steps) == (0.1, None)
    assert (hyper.max_length, hyper.overlong_rows, hyper.packing) == (2048, "drop", True)
    assert (hyper.seed, hyper.bf16, hyper.fp16, hyper.load_in_4bit) == (42, "auto", None, True)
    assert (hyper.max_grad_norm, run.sources["max_grad_norm"]) == (1.0, "default of transformers")
    assert run.sources["overlong_rows"] == "default of axolotl"
    file = "README.md" if from_the_card else "../config.yaml"
    assert run.sources["learning_rate"] == f"{file}: learning_rate"
    assert run.unread == ()


def test_case_47_arguments_of_a_class_that_nobody_can_import() -> None:
    run = read_run_folder(HOSTILE / "unsloth_run")
    hyper = run.hyper

    assert run.trainer == "unsloth"
    assert (hyper.learning_rate, hyper.epochs, hyper.max_steps) == (2e-4, 3, 60)
    assert (hyper.per_device_batch, hyper.grad_accum, hyper.effective_batch) == (2, 4, 8)
    assert (hyper.warmup_steps, hyper.warmup_ratio) == (5, None)
    assert (hyper.max_length, run.sources["max_length"]) == (2048, "training_args.bin: max_seq_length")
    assert (hyper.seed, hyper.bf16, hyper.fp16) == (3407, True, False)
    assert run.unread == ()


@pytest.mark.parametrize(
    ("folder", "reason"),
    [
        ("hostile_run", "refused: training_args.bin references posix.mkdir"),
        ("notzip_run", "Git LFS pointer, file not downloaded"),
    ],
)
def test_case_47_what_is_not_read_says_why_and_nothing_runs(folder: str, reason: str) -> None:
    run = read_run_folder(HOSTILE / folder)

    assert (run.trainer, run.unread) == ("unknown", (Unread("training_args.bin", reason),))
    assert not EXECUTED.exists()


@pytest.mark.parametrize(
    ("old_folder", "new_folder"),
    [
        (RUNS / "trl0-transformers4", CASES / "29-run-trl1-transformers5" / "run"),
        (RUNS / "trainer-transformers4", RUNS / "trainer-transformers5"),
    ],
)
def test_both_major_versions_of_transformers_and_trl_give_the_same_record(
    old_folder: Path, new_folder: Path
) -> None:
    old, new = read_run_folder(old_folder), read_run_folder(new_folder)

    assert (old.hyper, old.trainer, old.unread) == (new.hyper, new.trainer, ())
    assert old.lora is not None
    assert new.lora is not None
    # The two base models have other sizes.
    assert dataclasses.replace(old.lora, raw={}, n_parameters=0) == dataclasses.replace(
        new.lora, raw={}, n_parameters=0
    )
    assert [row.learning_rate for row in old.train_log] == [row.learning_rate for row in new.train_log]
    assert [(row.step, row.name) for row in old.eval_log] == [(row.step, row.name) for row in new.eval_log]
    assert (old.global_step, old.total_steps, old.has_log) == (new.global_step, new.total_steps, True)
    # Only the key of the warmup was renamed.
    assert {name for name in old.sources | new.sources if old.sources[name] != new.sources[name]} == {
        "warmup_ratio"
    }


def test_a_run_of_the_plain_trainer_has_no_length_limit() -> None:
    run = read_run_folder(RUNS / "trainer-transformers5")

    assert run.trainer == "transformers"
    assert (run.hyper.max_length, run.hyper.packing, run.hyper.overlong_rows) == (None, None, None)
    assert (run.hyper.warmup_ratio, run.hyper.effective_batch) == (0.1, 4)


def test_a_checkpoint_reads_as_a_run_of_its_own() -> None:
    run = read_run_folder(CASES / "29-run-trl1-transformers5" / "run" / "checkpoint-6")
    assert (run.trainer, run.checkpoint, run.global_step) == ("trl", None, 6)


def test_the_arguments_of_a_run_without_a_saved_end_come_from_its_newest_checkpoint(tmp_path: Path) -> None:
    case = CASES / "29-run-trl1-transformers5" / "run" / "checkpoint-6"
    shutil.copytree(case, tmp_path / "checkpoint-6")
    (tmp_path / "checkpoint-10").mkdir()  # Cut off before its state was written.

    run = read_run_folder(tmp_path)

    assert run.checkpoint == "checkpoint-6"
    assert run.sources["learning_rate"] == "checkpoint-6/training_args.bin: learning_rate"
    assert run.lora is not None
    assert run.lora.n_modules == 14


@pytest.mark.parametrize("name", ["nowhere", "a-file"])
def test_what_is_no_folder_is_an_error(tmp_path: Path, name: str) -> None:
    (tmp_path / "a-file").write_text("x")
    with pytest.raises(RunError, match=r"run folder|not a file"):
        read_run_folder(tmp_path / name)


def test_a_folder_that_only_holds_a_run_says_which_one_to_pass() -> None:
    with pytest.raises(RunError, match=r"trainer_state\.json") as caught:
        read_run_folder(CASES / "31-trainer-state-nan")
    assert "31-trainer-state-nan/run" in str(caught.value)


def test_an_empty_folder_is_an_error_that_lists_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"training_args\.bin") as caught:
        read_run_folder(tmp_path)
    assert caught.value.fix is None


def _big(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2 << 30)


def _unreadable(path: Path) -> None:
    path.write_text("{}")
    path.chmod(0)


def _escaping(path: Path) -> None:
    outside = path.parent.parent / "outside.json"
    outside.write_text('{"log_history": []}')
    path.symlink_to(outside)


def _looping(path: Path) -> None:
    path.symlink_to(path.name)


@pytest.mark.parametrize(
    "name", ["trainer_state.json", "training_args.bin", "adapter_config.json", "README.md"]
)
@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (_big, "MiB are read"),
        (lambda path: path.mkdir(), "a folder, not a file"),
        (_escaping, "leads out of the run folder"),
        (_looping, "leads out of the run folder"),
        (lambda path: os.mkfifo(path), "not a plain file"),
        pytest.param(
            _unreadable,
            "no permission",
            marks=pytest.mark.skipif(os.getuid() == 0, reason="root may read all"),
        ),
    ],
)
def test_a_file_that_resists_is_listed_with_its_reason(tmp_path: Path, name: str, spoil, reason: str) -> None:  # type: ignore[no-untyped-def]
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "trainer_log.jsonl").write_text('{"current_steps": 1, "loss": 2.0}\n')
    spoil(folder / name)

    run = read_run_folder(folder)

    assert [entry.file for entry in run.unread] == [name]
    assert reason in run.unread[0].reason
    assert run.train_log[0].loss == 2.0


def test_links_into_the_hubs_download_cache_are_followed(tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "abc"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    (blobs / "1f").write_text('{"global_step": 5, "log_history": []}')
    (snapshot / "trainer_state.json").symlink_to(Path("..") / ".." / "blobs" / "1f")

    assert read_run_folder(snapshot).global_step == 5


def test_a_pickle_of_weights_is_not_opened(tmp_path: Path) -> None:
    run = read_run_folder(CASES / "39-adapter-bin-only")

    assert run.lora is not None
    assert run.lora.n_parameters is None
    assert [entry.file for entry in run.unread] == ["adapter/adapter_model.bin"]


def test_states_of_optimizer_and_random_generators_are_never_opened(tmp_path: Path) -> None:
    shutil.copytree(CASES / "31-trainer-state-nan" / "run", tmp_path / "run")
    for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth"):
        # Opening a pipe that nobody writes to would wait for ever.
        os.mkfifo(tmp_path / "run" / name)

    assert read_run_folder(tmp_path / "run").unread == ()


def test_what_the_trainers_results_record_is_taken_from_them(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 4, "lora_alpha": 8}))
    (tmp_path / "train_results.json").write_text(json.dumps({"train_loss": 1.5, "train_samples": 800}))
    (tmp_path / "eval_results.json").write_text(json.dumps({"eval_loss": 1.0, "eval_samples": 64}))

    run: RunArtifact = read_run_folder(tmp_path)

    assert (run.n_train_rows, run.hyper.eval_rows) == (800, 64)
    assert run.sources["eval_rows"] == "eval_results.json: eval_samples"
    assert dict(run.summary) == {"train_loss": 1.5, "train_samples": 800}
    assert run.has_log is False


def test_a_home_folder_of_nobody_is_a_folder_that_is_not_there() -> None:
    with pytest.raises(RunError, match="no such run folder"):
        read_run_folder("~nobody-is-called-so/run")


def test_folders_that_lead_back_to_the_run_are_not_followed_for_ever(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    for name, target in (("checkpoint-1", "."), ("checkpoint-2", "checkpoint-2"), ("checkpoint-3", "../..")):
        (tmp_path / name).symlink_to(target)
    os.mkfifo(tmp_path / "checkpoint-4")
    assert read_run_folder(tmp_path).checkpoint is None


def test_the_folders_of_a_run_are_listed_once_however_many_there_are(tmp_path: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    listed: list[object] = []
    scan = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: (listed.append(path), scan(path))[1])
    for step in range(200):
        (tmp_path / f"checkpoint-{step}").mkdir()
    (tmp_path / "checkpoint-7" / "trainer_state.json").write_text('{"global_step": 7}')
    assert read_run_folder(tmp_path).checkpoint == "checkpoint-7"
    assert listed == [tmp_path]


@pytest.mark.parametrize("name", ["~nobody-of-that-name/run", "x" * 5000, "a\0b"])
def test_a_name_that_no_folder_can_have_is_a_folder_that_is_not_there(name: str) -> None:
    with pytest.raises(RunError, match="there is no such run folder"):
        read_run_folder(name)
