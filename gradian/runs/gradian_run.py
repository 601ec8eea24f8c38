"""`gradian_run.json`: what `gradian train` did, so that nobody has to type it in again."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from gradian.errors import RunError
from gradian.jsonvalue import parse_json
from gradian.plainfile import read_plain
from gradian.runs.adapter_config import adapter_settings
from gradian.runs.contents import Contents, Reading
from gradian.runs.files import JSON_LIMIT, RunFiles
from gradian.runs.scalars import as_bool, as_count, as_int, as_text
from gradian.runs.settings import Key, Settings
from gradian.runs.trainer_state import parse_state
from gradian.runs.transformers_run import settings_of

RUN_FILE = "gradian_run.json"
SCHEMA_VERSION = 1
# A null in these columns of the log was a NaN or an infinity, for which JSON has no word.
_NEVER_NULL = ("loss", "grad_norm", "eval_loss")
# Fields whose kind is relied upon, so that a record that somebody edited is told from one that was written.
_KINDS: Mapping[type, tuple[str, ...]] = {
    dict: ("dataset", "train", "lora", "inputs", "versions"),
    list: ("checkpoints", "log_history"),
    str: ("backend", "base_model", "adapter_path", "gradian_version", "dataset.path", "dataset.hash"),
    int: ("seed", "steps", "dataset.n", "dataset.n_trained"),
}
_KEYS = (
    Key("max_seq_length", "max_length", as_count),
    Key("load_in_4bit", "load_in_4bit", as_bool),
)


@dataclass(frozen=True)
class RunDataset:
    """The training data of a run.

    Attributes:
        path: absolute path.
        hash: `gradian.data.ids.dataset_hash` of its rows.
        n: rows in the file.
        n_trained: rows with at least one target; the others were left out of the batches.
    """

    path: str
    hash: str
    n: int
    n_trained: int


@dataclass(frozen=True)
class RunCheckpoint:
    """An adapter saved on the way.

    Attributes:
        path: folder, relative to the run's.
        step: optimizer steps taken.
        epoch: passes over the data so far.
        learning_rate: rate of the last step.
    """

    path: str
    step: int
    epoch: float
    learning_rate: float


@dataclass(frozen=True)
class GradianRun:
    """One finished training run; JSON values only.

    Attributes:
        backend: training backend.
        base_model: hub id, or absolute path, that loads again.
        adapter_path: absolute path of the adapter folder; always `adapter` beside this file.
        dataset: the training data.
        seed: of everything.
        train: every hyper-parameter, as the config's `train` section has them.
        lora: the adapter's own settings, as PEFT wrote them.
        steps: optimizer steps taken.
        inputs: everything that decides the adapter's bytes on one machine: two runs with equal inputs are the same run.
        versions: of the libraries that trained it.
        checkpoints: adapters saved on the way, in order.
        log_history: the trainer's log rows: loss, learning rate, gradient norm by step.
        arguments: what the trainer ran with of its arguments that `train` has no setting for, by transformers' names.
        wall_time_s: seconds that training took.
        gradian_version: of the writer.
        schema_version: of this file.
    """

    backend: str
    base_model: str
    adapter_path: str
    dataset: RunDataset
    seed: int
    train: Mapping[str, Any]
    lora: Mapping[str, Any]
    steps: int
    inputs: Mapping[str, Any]
    versions: Mapping[str, str]
    wall_time_s: float
    gradian_version: str
    checkpoints: tuple[RunCheckpoint, ...] = ()
    log_history: tuple[Mapping[str, Any], ...] = field(default=())
    arguments: Mapping[str, Any] = field(default_factory=dict)
    schema_version: int = SCHEMA_VERSION

    def to_json(self) -> str:
        """Return the file's text: sorted keys, two spaces, a newline at the end; NaN and infinities as null."""
        head = {"schema_version": self.schema_version}
        rest = {key: value for key, value in asdict(self).items() if key != "schema_version"}
        return json.dumps(_strict({**head, **rest}), indent=2, ensure_ascii=False, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str, where: str = RUN_FILE) -> GradianRun:
        """Return the record behind a file's text; keys that this version does not know are ignored.

        Raises:
            RunError: it is not such a file.
        """
        try:
            data = parse_json(text)
        except ValueError as error:
            raise RunError("the run record is not JSON", where=where, found=str(error)) from None
        version = data.get("schema_version") if isinstance(data, dict) else None
        if version != SCHEMA_VERSION:
            raise RunError(
                "the run record has another format",
                where=where,
                found=f"schema_version {version!r}",
                expected=str(SCHEMA_VERSION),
            )
        try:
            _check_kinds(data, where)
            data["dataset"] = _known(RunDataset, data["dataset"])
            data["checkpoints"] = tuple(_known(RunCheckpoint, entry) for entry in data["checkpoints"])
            data["log_history"] = tuple(data["log_history"])
            run: GradianRun = _known(cls, data)
        except (KeyError, TypeError) as error:
            raise RunError("the run record lacks a field", where=where, found=str(error)) from None
        return run


def read_run(folder: str | Path) -> GradianRun | None:
    """Return the record of a finished run, or None where the folder has none.

    Raises:
        RunError: there is one that cannot be read.
    """
    path = Path(folder) / RUN_FILE
    try:
        text = read_plain(path, JSON_LIMIT).decode("utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise RunError("the run record cannot be read", where=str(path), found=str(error)) from None
    return GradianRun.from_json(text, str(path))


def parse_run(files: RunFiles) -> GradianRun | None:
    """Return the record in a folder; None where there is none, or with the reason noted in `files.unread`."""
    text = files.text(RUN_FILE, JSON_LIMIT)
    if text is None:
        return None
    try:
        return GradianRun.from_json(text)
    except RunError as error:
        files.refuse(RUN_FILE, f"{error.problem}: {error.found}")
    except (TypeError, AttributeError, RecursionError) as error:
        files.refuse(RUN_FILE, f"its fields have other kinds: {error}")
    return None


def read(contents: Contents) -> Reading | None:
    """Read the record, which has every setting and the log; None where there is none that can be read."""
    run = parse_run(contents.files)
    if run is None:
        return None
    extra = run.train.get("extra")
    own = {key: value for key, value in run.train.items() if key != "extra"}
    settings = settings_of(extra, f"{RUN_FILE}: train.extra") if isinstance(extra, Mapping) else Settings()
    settings = settings.over(settings_of(own, f"{RUN_FILE}: train", _KEYS))
    if isinstance(run.arguments, Mapping):
        settings = settings.over(settings_of(run.arguments, f"{RUN_FILE}: arguments"))
    fixed = {"overlong_rows": "truncate", "packing": False, "n_devices": 1, "logging_nan_inf_filter": False}
    settings = settings.over(Settings.of(f"{RUN_FILE}: seed", {"seed": as_int(run.seed)}))
    settings = settings.over(Settings.of("how gradian trains", fixed))
    rows = [
        {**row, **{key: math.nan for key in _NEVER_NULL if key in row and row[key] is None}}
        for row in run.log_history
        if isinstance(row, Mapping)
    ]
    state = parse_state({"log_history": rows, "global_step": run.steps})
    return Reading(
        settings,
        lora=None if contents.lora else adapter_settings(run.lora),
        base_model=(run.base_model, f"{RUN_FILE}: base_model") if as_text(run.base_model) else None,
        state=state,
        n_train_rows=as_count(run.dataset.n_trained),
        versions={
            **{name: text for name, text in run.versions.items() if isinstance(text, str)},
            "gradian": str(run.gradian_version),
        },
    )


def _check_kinds(data: Mapping[str, Any], where: str) -> None:
    def values() -> Iterator[tuple[str, Any, type]]:
        for kind, names in _KINDS.items():
            for name in names:
                outer, _, inner = name.rpartition(".")
                yield name, (data[outer] if outer else data)[inner], kind
        for place, entry in enumerate(data["checkpoints"]):
            yield f"checkpoints.{place}", entry, dict

    for name, value, kind in values():
        if not isinstance(value, kind) or isinstance(value, bool):
            raise RunError(
                "a field of the run record holds a value of another kind",
                where=where,
                found=f"{name}: {type(value).__name__}",
                expected=kind.__name__,
            )


def _known(kind: type[Any], data: Mapping[str, Any]) -> Any:
    names = {entry.name for entry in fields(kind)}
    return kind(**{key: value for key, value in data.items() if key in names})


def _strict(value: Any) -> Any:
    # A loss of NaN is worth keeping in the curve, and JSON has no word for it.
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: _strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(item) for item in value]
    return value
