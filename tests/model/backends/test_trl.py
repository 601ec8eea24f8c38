"""What SFTTrainer really trains on: the rows and masks that attribution uses, in whichever version is installed.

`make oldest` runs these tests with the oldest supported libraries.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor

from gradian.config import Config
from gradian.data.formats import load_dataset
from gradian.errors import ConfigError, MissingExtraError
from gradian.model.backends.base import run_training, training_backends
from gradian.model.backends.trl import TrlBackend
from gradian.model.load import load_model
from gradian.runs.gradian_run import read_run
from gradian.runs.read import read_run_folder
from gradian.types import EncodedExample
from tests.conftest import make_tokenizer
from tests.model.backends.test_hf import settings as backend_settings
from tests.model.backends.test_hf import write_rows

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("trl") is None, reason="trl is not installed; the dev extra brings it"
)
LIMIT = 96
WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]


def plain_rows(count: int) -> list[dict[str, Any]]:
    return [
        {"prompt": f"{WORDS[i % 10]} {i}", "completion": f"{WORDS[(i * 7 + 3) % 10]} " * (1 + i % 3)}
        for i in range(count)
    ]


def turns(*contents: str) -> dict[str, Any]:
    roles = ("user", "assistant")
    return {"messages": [{"role": roles[i % 2], "content": text} for i, text in enumerate(contents)]}


SYSTEM = {"role": "system", "content": "be brief"}
ROWS = [
    *plain_rows(12),
    # Several answers in one row, all of them targets.
    turns("a", "b", "c", "d"),
    turns("first", "one", "then", "two", "last", "three"),
    {"messages": [SYSTEM, *turns("who", "me", "and", "you")["messages"]]},
    # Cut inside the answer, and inside the second answer.
    {"prompt": "long", "completion": "abcdefgh " * 30},
    turns("short", "yes", "long", "tail " * 40),
    # Cut in front of every answer: no target, so left out.
    {"prompt": "x" * 300, "completion": "never seen"},
    # Every token is a target, and no end token is added.
    {"text": "plain text without turns"},
    # Text that spells special tokens.
    {"prompt": "what is <|im_end|>?", "completion": "the end <|im_end|> and <|endoftext|>"},
    # The same row twice.
    {"prompt": "again", "completion": "same"},
    {"prompt": "again", "completion": "same"},
]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_rows(tmp_path / "train.jsonl", ROWS)


def settings(model: Path, data: Path, out: Path, **train: Any) -> Config:
    own = {"per_device_train_batch_size": 4, "max_seq_length": LIMIT}
    return backend_settings(model, data, out, **{**own, **train})


@pytest.fixture
def pad_is_eos_dir(tmp_path: Path, tiny_model_dir: Path) -> Path:
    """The tiny model with a tokenizer that pads with its end token."""
    folder = tmp_path / "pad-is-eos"
    folder.mkdir()
    for file in tiny_model_dir.iterdir():
        (folder / file.name).symlink_to(file)
    for name in ("tokenizer_config.json", "tokenizer.json", "special_tokens_map.json"):
        (folder / name).unlink(missing_ok=True)
    tokenizer = make_tokenizer()
    tokenizer.pad_token = tokenizer.eos_token
    tokenizer.save_pretrained(folder)
    return folder


class Seen:
    """The batches whose loss a trainer computed, as rows without their padding."""

    def __init__(self) -> None:
        self.rows: list[tuple[tuple[int, ...], tuple[int, ...]]] = []

    def add(self, inputs: dict[str, Tensor]) -> None:
        for ids, mask, labels in zip(
            inputs["input_ids"], inputs["attention_mask"], inputs["labels"], strict=True
        ):
            length = int(mask.sum())
            assert mask.tolist() == [1] * length + [0] * (len(mask) - length)
            assert (labels[length:] == -100).all()
            self.rows.append((tuple(ids[:length].tolist()), tuple(labels[:length].tolist())))


def watched(monkeypatch: pytest.MonkeyPatch, trainer: type[Any]) -> Seen:
    seen = Seen()
    compute_loss = trainer.compute_loss

    def recorded(self: Any, model: Any, inputs: dict[str, Tensor], *rest: Any, **options: Any) -> Any:
        seen.add(inputs)
        return compute_loss(self, model, inputs, *rest, **options)

    monkeypatch.setattr(trainer, "compute_loss", recorded)
    return seen


def sft_trainer() -> type[Any]:
    from trl import SFTTrainer

    return SFTTrainer  # type: ignore[no-any-return]


def attributed(config: Config) -> Iterator[EncodedExample]:
    """The rows as attribution encodes them, those without a target left out."""
    encoder = load_model(config, adapter=False).encoder(config.train.max_seq_length)
    for example in load_dataset(config.dataset).examples:
        row = encoder.encode(example)
        if row.n_supervised:
            yield row


def as_labels(row: EncodedExample) -> tuple[tuple[int, ...], tuple[int, ...]]:
    labels = np.where(row.supervised, row.input_ids, -100)
    return tuple(row.input_ids.tolist()), tuple(labels.tolist())


@pytest.mark.parametrize("model", ["tiny_model_dir", "pad_is_eos_dir"])
def test_the_labels_that_sft_trainer_trains_on_are_the_mask_of_attribution(
    tmp_path: Path,
    data: Path,
    model: str,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Any,
) -> None:
    config = settings(request.getfixturevalue(model), data, tmp_path / "run")
    seen = watched(monkeypatch, sft_trainer())

    run_training(config, backend="trl")

    rows = list(attributed(config))
    assert len(rows) == len(ROWS) - 1
    assert any(row.truncated for row in rows)
    assert sorted(seen.rows) == sorted([as_labels(row) for row in rows] * 2)
    record_property("trl", version("trl"))
    record_property("rows compared", len(seen.rows))


def test_it_trains_as_the_hf_backend_does(
    tmp_path: Path, tiny_model_dir: Path, data: Path, monkeypatch: pytest.MonkeyPatch, record_property: Any
) -> None:
    hf_rows = watched(monkeypatch, transformers.Trainer)
    settings_of = {"lora_dropout": 0.1, "gradient_accumulation_steps": 2}
    hf = run_training(settings(tiny_model_dir, data, tmp_path / "hf", **settings_of))
    monkeypatch.undo()
    trl_rows = watched(monkeypatch, sft_trainer())
    trl = run_training(settings(tiny_model_dir, data, tmp_path / "trl", **settings_of), backend="trl")

    assert trl_rows.rows == hf_rows.rows
    losses = [[row["loss"] for row in read_run(run).log_history if "loss" in row] for run in (hf, trl)]  # type: ignore[union-attr]
    assert len(losses[0]) == 6
    assert losses[1] == pytest.approx(losses[0], rel=2e-5)
    ours, theirs = (load_file(run / "adapter" / "adapter_model.safetensors") for run in (hf, trl))
    for name, value in ours.items():
        torch.testing.assert_close(theirs[name], value, rtol=1e-4, atol=1e-5)
    record_property(
        "largest relative difference of a loss", max(abs(a / b - 1) for a, b in zip(*losses, strict=True))
    )


def test_the_run_folder_holds_what_one_of_hf_does(tmp_path: Path, tiny_model_dir: Path, data: Path) -> None:
    run = run_training(settings(tiny_model_dir, data, tmp_path / "run", save_checkpoints=True), backend="trl")

    assert {path.name for path in run.iterdir()} >= {"adapter", "gradian_run.json", "trainer_state.json"}
    record = read_run(run)
    assert record is not None
    assert (record.backend, record.steps, record.dataset.n, record.dataset.n_trained) == ("trl", 12, 22, 21)
    assert record.base_model == record.lora["base_model_name_or_path"] == str(tiny_model_dir.resolve())
    assert record.versions["trl"] == version("trl")
    assert (record.arguments["fp16"], record.arguments["bf16"]) == (False, False)
    assert [saved.step for saved in record.checkpoints] == [6, 12]
    read = read_run_folder(run)
    assert (read.trainer, read.hyper.max_length, read.hyper.packing) == ("gradian", LIMIT, False)
    assert (read.hyper.bf16, read.hyper.optimizer) == (False, record.arguments["optim"])
    assert len(read.train_log) == 12
    # The loaded adapter is the trained one.
    loaded = load_model(
        settings(tiny_model_dir, data, tmp_path / "x").model_copy(
            update={"adapter_path": str(run / "adapter")}
        )
    )
    assert loaded.findings == ()


def test_it_says_nothing_on_standard_output(
    tmp_path: Path, tiny_model_dir: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_training(settings(tiny_model_dir, data, tmp_path / "run", num_train_epochs=0.1), backend="trl")

    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("extra", "says"),
    [
        ({"packing": True}, "packing: this argument is Gradian's to set"),
        (
            {"max_length": 8, "max_seq_length": 8},
            "length: (this argument is Gradian's to set|trl.SFTConfig has no such)",
        ),
        ({"dataset_kwargs": {}}, "Gradian's to set"),
        ({"padding_fre": True}, r"trl\.SFTConfig has no such argument"),
        ({"loss_type": "nonsense"}, "SFTTrainer refuses the run|no such argument"),
    ],
)
def test_an_argument_that_would_change_the_rows_is_refused(
    tmp_path: Path, tiny_model_dir: Path, data: Path, extra: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        run_training(settings(tiny_model_dir, data, tmp_path / "run", extra=extra), backend="trl")
    assert not (tmp_path / "run").exists()


def test_an_argument_of_trls_own_reaches_it(
    tmp_path: Path, tiny_model_dir: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = []
    trainer = sft_trainer()
    train = trainer.train

    def recorded(self: Any) -> Any:
        arguments.append(self.args)
        return train(self)

    monkeypatch.setattr(trainer, "train", recorded)
    config = settings(tiny_model_dir, data, tmp_path / "run", extra={"max_steps": 1, "dataset_num_proc": 1})

    assert read_run(run_training(config, backend="trl")).steps == 1  # type: ignore[union-attr]
    assert arguments[0].dataset_num_proc == 1
    # trl would checkpoint gradients and use bfloat16 by itself.
    assert (arguments[0].gradient_checkpointing, arguments[0].bf16) == (False, False)


def test_four_bit_training_is_refused(tmp_path: Path, tiny_model_dir: Path, data: Path) -> None:
    with pytest.raises(ConfigError, match="the trl backend trains in the base model's own precision"):
        run_training(settings(tiny_model_dir, data, tmp_path / "run", load_in_4bit=True), backend="trl")


def test_the_backend_is_registered_and_can_run_here() -> None:
    assert isinstance(training_backends()["trl"], TrlBackend)
    assert training_backends()["trl"].unavailable is None


def test_a_trl_that_does_not_import_is_no_traceback(
    tmp_path: Path, tiny_model_dir: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TrlBackend, "unavailable", None)
    monkeypatch.setitem(sys.modules, "trl", None)

    with pytest.raises(
        MissingExtraError, match=r'cannot be imported(?s:.*)pip install "gradian-ml\[train\]"'
    ):
        run_training(settings(tiny_model_dir, data, tmp_path / "run"), backend="trl")
