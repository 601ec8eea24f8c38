"""What is in a run folder, read once, before it is known which trainer wrote it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from gradian.runs.adapter_config import CONFIG, read_lora
from gradian.runs.artifact import LoraSettings
from gradian.runs.checkpoints import batch_sizes, newest_with
from gradian.runs.files import JSON_LIMIT, MEBIBYTE, RunFiles
from gradian.runs.model_card import ModelCard, read_card
from gradian.runs.scalars import as_text
from gradian.runs.settings import Settings
from gradian.runs.trainer_state import FILE as STATE_FILE
from gradian.runs.trainer_state import TrainerState, parse_state
from gradian.runs.training_args_bin import FILE as ARGUMENTS_FILE
from gradian.runs.training_args_bin import FILE_LIMIT, PickledObject, RefusedPickle, read_training_args
from gradian.runs.yamlconfig import YamlConfig, own_configs

TOKENIZER_FILE = "tokenizer_config.json"
RESULT_FILES = ("train_results.json", "eval_results.json", "all_results.json")
_SMALL = 16 * MEBIBYTE
# `gradian train` keeps the adapter in a folder of this name.
_ADAPTER_FOLDERS = ("", "adapter")

Trainer = Literal["gradian", "transformers", "trl", "axolotl", "llamafactory", "unsloth", "unknown"]


@dataclass(frozen=True)
class Contents:
    """The parts of a run folder that every trainer writes alike.

    Attributes:
        files: the folder.
        checkpoint: the checkpoint that the state was read from; None when the root has it.
        state: the log; None without one.
        arguments: the object in `training_args.bin`; None without one that can be read.
        arguments_file: where it was.
        card: the model card.
        lora: the adapter; None without one.
        adapter_file: its configuration's path.
        pad_token: of the tokenizer saved beside the run, and its file.
        results: numbers of the `*_results.json`, each with its file.
        configs: the YAML files in the folder itself.
    """

    files: RunFiles
    checkpoint: str | None
    state: TrainerState | None
    arguments: PickledObject | None
    arguments_file: str
    card: ModelCard
    lora: LoraSettings | None
    adapter_file: str
    pad_token: tuple[str, str] | None
    results: Mapping[str, tuple[Any, str]]
    configs: tuple[YamlConfig, ...]

    @property
    def arguments_class(self) -> str:
        """Module and name of the class of the training arguments; empty without one."""
        return f"{self.arguments.module}.{self.arguments.name}" if self.arguments else ""

    @property
    def base_model(self) -> str | None:
        """The base model in the adapter's configuration."""
        return as_text(self.lora.raw.get("base_model_name_or_path")) if self.lora else None


class Reading(NamedTuple):
    """What one trainer's reader adds.

    Attributes:
        settings: the run's.
        defaults: the trainer's own, for what neither the run nor its log says.
        lora: adapter settings from a config file, for a folder without an adapter.
        base_model: from a config file, and the file and key.
        state: the log, where the trainer keeps one of its own.
        n_train_rows: rows it was trained on.
        versions: of libraries.
    """

    settings: Settings
    defaults: Settings = Settings()
    lora: LoraSettings | None = None
    base_model: tuple[str, str] | None = None
    state: TrainerState | None = None
    n_train_rows: int | None = None
    versions: Mapping[str, str] = MappingProxyType({})


def read_contents(files: RunFiles) -> Contents:
    """Return what is in the folder; what cannot be read is noted in `files.unread`."""
    at_root = files.has(STATE_FILE)
    checkpoint = None if at_root else newest_with(files, STATE_FILE)
    raw = files.json(_in(checkpoint, STATE_FILE), JSON_LIMIT) if at_root or checkpoint else None
    arguments_folder = _first(files, ARGUMENTS_FILE, ("",))
    arguments_file = _in(arguments_folder, ARGUMENTS_FILE)
    adapter_folder = _first(files, CONFIG, _ADAPTER_FOLDERS)
    return Contents(
        files=files,
        checkpoint=checkpoint,
        state=None if raw is None else parse_state(raw, batch_sizes(files)),
        arguments=_arguments(files, arguments_file),
        arguments_file=arguments_file,
        card=read_card(files),
        lora=read_lora(files, adapter_folder),
        adapter_file=_in(adapter_folder, CONFIG),
        pad_token=_pad_token(files),
        results=_results(files),
        configs=own_configs(files),
    )


def _in(folder: str | None, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def _first(files: RunFiles, name: str, folders: tuple[str, ...]) -> str:
    """Return the first folder that has a file of that name, then the newest checkpoint that does; "" for none."""
    for folder in folders:
        if files.has(_in(folder, name)):
            return folder
    return newest_with(files, name) or ""


def _arguments(files: RunFiles, name: str) -> PickledObject | None:
    data = files.content(name, FILE_LIMIT)
    if data is None:
        return None
    try:
        return read_training_args(data)
    except RefusedPickle as error:
        files.refuse(name, str(error))
        return None


def _pad_token(files: RunFiles) -> tuple[str, str] | None:
    name = _in(_first(files, TOKENIZER_FILE, _ADAPTER_FOLDERS), TOKENIZER_FILE)
    token = (files.json(name, _SMALL) or {}).get("pad_token")
    text = as_text(token.get("content") if isinstance(token, dict) else token)
    return (text, f"{name}: pad_token") if text else None


def _results(files: RunFiles) -> dict[str, tuple[Any, str]]:
    found: dict[str, tuple[Any, str]] = {}
    for name in RESULT_FILES:
        for key, value in (files.json(name, _SMALL) or {}).items():
            found.setdefault(key, (value, name))
    return found
