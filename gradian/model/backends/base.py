"""Training backends: what they share is here, so that each only has to fit an adapter.

A run folder appears in one rename when everything in it is whole. Until then the work lies in a hidden folder beside
it, which the next run into the same place clears away.
"""

from __future__ import annotations

import importlib.metadata
import logging
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from safetensors import SafetensorError

from gradian.config.required import required
from gradian.config.schema import Config
from gradian.data.chat import ChatEncoder, encode_all, load_tokenizer
from gradian.data.formats import Dataset, load_dataset
from gradian.data.ids import dataset_hash
from gradian.errors import DataError, MissingExtraError, RunError
from gradian.model.checkpoint import absolute_name, base_folder, checkpoint_fingerprint
from gradian.model.load import resolve_device, resolve_dtype
from gradian.progress import NullProgress, Progress
from gradian.registry import Registry
from gradian.runs.gradian_run import RUN_FILE, GradianRun, RunCheckpoint, RunDataset, read_run
from gradian.store.durable import flush, make_folder, replace_file, sync_folder
from gradian.store.lock import file_lock
from gradian.types import EncodedExample

log = logging.getLogger(__name__)

ADAPTER_FOLDER = "adapter"
TRAINER_STATE = "trainer_state.json"
_LIBRARIES = ("torch", "transformers", "peft", "accelerate", "trl", "unsloth")
# Settings that change where a run lies or what is kept of it, and no byte of the adapter.
_NOT_AN_INPUT = frozenset({"output_dir", "base_model", "backend"})


@dataclass(frozen=True, eq=False)
class TrainingJob:
    """What a backend gets.

    Attributes:
        config: the run's settings, with `base_model` the model to train from.
        base_model: hub id or absolute path, to be written into the adapter.
        encoded: the rows to train on, each with at least one target, in dataset order. Their masks are those
            that attribution uses.
        folder: empty folder to fill with `adapter/`, `trainer_state.json` and `checkpoint-<step>/`.
        progress: shows the steps.
    """

    config: Config
    base_model: str
    encoded: Sequence[EncodedExample]
    folder: Path
    progress: Progress


@dataclass(frozen=True)
class TrainingOutcome:
    """What a backend gives back once the files are written.

    Attributes:
        lora: the adapter's settings; JSON values.
        steps: optimizer steps taken.
        log_history: the trainer's log rows.
        checkpoints: adapters saved on the way.
        arguments: what the trainer ran with of the arguments that `train` has no setting for; JSON values.
    """

    lora: Mapping[str, Any]
    steps: int
    log_history: tuple[Mapping[str, Any], ...]
    checkpoints: tuple[RunCheckpoint, ...] = ()
    arguments: Mapping[str, Any] = field(default_factory=dict)


class TrainingBackend(Protocol):
    """A way to fit a LoRA adapter."""

    @property
    def unavailable(self) -> str | None:
        """Why it cannot run here, with what to install, or None when it can."""
        ...

    def fit(self, job: TrainingJob) -> TrainingOutcome:
        """Train, and write the adapter and the trainer's state into `job.folder`."""
        ...


BACKENDS: Registry[TrainingBackend] = Registry("training backend")


def training_backends() -> Registry[TrainingBackend]:
    """Return all backends; this imports transformers, and neither trl nor unsloth."""
    # Each registers itself.
    import gradian.model.backends.hf
    import gradian.model.backends.trl
    import gradian.model.backends.unsloth  # noqa: F401

    return BACKENDS


def run_training(config: Config, *, backend: str | None = None, progress: Progress | None = None) -> Path:
    """Train a LoRA adapter into `train.output_dir` and return that folder.

    A folder that already holds the finished run of the same inputs is returned as it is.

    Args:
        config: `train`, `dataset`, `base_model`, `tokenizer`, `seed`, `device`, `dtype` and
            `attn_implementation` are read.
        backend: name of the backend; None takes `train.backend`.
        progress: shows how far the training is.

    Raises:
        ConfigError: a setting is missing or impossible.
        MissingExtraError: the backend's packages are not installed.
        RunError: the folder holds something else, another process trains into it, or training diverged.
        DataError, ModelError: the data or the model.
    """
    name = backend or config.train.backend
    chosen = training_backends()[name]
    config = _resolved(config)
    data = load_dataset(required(config.dataset, "dataset", "--dataset", "there is nothing to train on"))
    tokenizer = load_tokenizer(config.tokenizer or config.base_model, config.trust_remote_code)
    encoder = ChatEncoder(tokenizer, config.train.max_seq_length)
    inputs = _inputs(config, name, data, encoder)
    out = Path(os.path.expanduser(config.train.output_dir)).absolute()
    if _finished(out, inputs):
        log.info("%s already holds this run: nothing to train", out)
        return out
    if chosen.unavailable:
        raise MissingExtraError(f"the training backend {name} cannot run here", found=chosen.unavailable)
    shown = progress or NullProgress()
    with _lock(out):
        if _finished(out, inputs):
            return out
        shown.keep("training", lambda: "nothing of this training, which begins again")
        _train_into(out, config, name, chosen, data, encoder, inputs, shown)
    shown.keep("training", lambda: f"the run in {out}")
    return out


def _train_into(
    out: Path,
    config: Config,
    name: str,
    backend: TrainingBackend,
    data: Dataset,
    encoder: ChatEncoder,
    inputs: Mapping[str, Any],
    progress: Progress,
) -> None:
    encoded = [row for row in encode_all(encoder, data.examples) if row.n_supervised]
    if not encoded:
        raise DataError(
            "no row has a token to learn from",
            where=str(data.path),
            found=f"{len(data)} rows",
            fix="check the row shapes, or raise train.max_seq_length",
        )
    if len(encoded) < len(data):
        log.warning("%d of %d rows have no target and are left out", len(data) - len(encoded), len(data))
    work = _work_folder(out)
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    try:
        start = time.monotonic()
        outcome = backend.fit(TrainingJob(config, config.base_model, encoded, folder=work, progress=progress))
        run = GradianRun(
            backend=name,
            base_model=config.base_model,
            adapter_path=str(out / ADAPTER_FOLDER),
            dataset=RunDataset(str(data.path.absolute()), inputs["dataset"], len(data), len(encoded)),
            seed=config.seed,
            train=config.train.model_dump(),
            lora=outcome.lora,
            steps=outcome.steps,
            inputs=inputs,
            versions=_versions(),
            wall_time_s=round(time.monotonic() - start, 3),
            gradian_version=importlib.metadata.version("gradian-ml"),
            checkpoints=outcome.checkpoints,
            log_history=outcome.log_history,
            arguments=outcome.arguments,
        )
        replace_file(work / RUN_FILE, run.to_json().encode("utf-8"))
        _publish(work, out)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _resolved(config: Config) -> Config:
    # One name for the base model from here on, and one that loads from any folder.
    name = required(
        config.train.base_model or config.base_model,
        "base_model",
        "--base-model",
        "there is no model to train",
    )
    base_folder(name)
    return config.model_copy(update={"base_model": absolute_name(name)})


def _inputs(config: Config, backend: str, data: Dataset, encoder: ChatEncoder) -> dict[str, Any]:
    device = resolve_device(config)
    train = config.train.model_dump()
    return {
        "backend": backend,
        "checkpoint": checkpoint_fingerprint(config.base_model, None),
        "dataset": dataset_hash(data.examples),
        "encoding": encoder.fingerprint,
        "seed": config.seed,
        "device": device.type,
        "dtype": str(resolve_dtype(config, device)).removeprefix("torch."),
        "attn_implementation": config.attn_implementation,
        "train": {key: value for key, value in train.items() if key not in _NOT_AN_INPUT},
    }


def _finished(out: Path, inputs: Mapping[str, Any]) -> bool:
    run = read_run(out)
    if run is not None:
        differing = _differences(run.inputs, inputs)
        if not differing:
            return True
        raise RunError(
            "the folder holds a finished run of other inputs, which is not overwritten",
            where=str(out),
            found="; ".join(differing[:5]),
            fix="choose another output folder, or remove this one",
        )
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise RunError(
            "the folder is not empty and holds no finished run",
            where=str(out),
            expected="an empty or new folder",
            fix="choose another output folder, or remove this one",
        )
    return False


def _differences(there: Mapping[str, Any], here: Mapping[str, Any], prefix: str = "") -> list[str]:
    found = []
    for key in sorted({*there, *here}):
        old, new = there.get(key), here.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            found += _differences(old, new, f"{prefix}{key}.")
        elif old != new:
            found.append(f"{prefix}{key}: {_short(old)} there, {_short(new)} here")
    return found


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 24 else f"{text[:12]}..."


@contextmanager
def _lock(out: Path) -> Iterator[None]:
    with _writing(out), ExitStack() as held:
        make_folder(out.parent)
        try:
            held.enter_context(file_lock(out.with_name(f".{out.name}.lock"), wait_seconds=0))
        except TimeoutError:
            raise RunError(
                "another process is training into this folder", where=str(out), fix="wait for it to end"
            ) from None
        yield


@contextmanager
def _writing(out: Path) -> Iterator[None]:
    """Name the place when the disk refuses, whichever library was writing."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        refused = error.errno is not None if isinstance(error, OSError) else "I/O error" in str(error)
        if not refused or isinstance(error, ConnectionError):
            raise
        raise RunError(
            "the run cannot be written",
            where=str(out),
            found=getattr(error, "strerror", None) or str(error),
            fix="free space, or choose another output folder with --out; the training begins again",
        ) from error


def _work_folder(out: Path) -> Path:
    return out.with_name(f".{out.name}.gradian-partial")


def _publish(work: Path, out: Path) -> None:
    for path in sorted(work.rglob("*")):
        if path.is_dir():
            sync_folder(path)
        else:
            fd = os.open(path, os.O_RDONLY)
            try:
                flush(fd)
            finally:
                os.close(fd)
    sync_folder(work)
    # Over an empty folder too, and over nothing else.
    os.rename(work, out)
    sync_folder(out.parent)


def _versions() -> dict[str, str]:
    found = {}
    for name in _LIBRARIES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
