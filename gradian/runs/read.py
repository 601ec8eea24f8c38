"""Any trainer's run folder to one record; what is in the folder decides how it is read, never a flag."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from gradian.errors import RunError
from gradian.runs import axolotl, gradian_run, llamafactory, transformers_run, trl, unsloth
from gradian.runs.artifact import HyperParameters, RunArtifact
from gradian.runs.contents import Contents, Reading, Trainer, read_contents
from gradian.runs.files import RunFiles
from gradian.runs.scalars import as_int
from gradian.runs.settings import Settings
from gradian.runs.trainer_state import totals
from gradian.runs.transformers_run import card_settings, state_settings


class _Reader(NamedTuple):
    trainer: Trainer
    read: Callable[[Contents], Reading | None]


# The most telling first: every one of them but the first leaves what transformers leaves too.
_READERS = (
    _Reader("gradian", gradian_run.read),
    _Reader("llamafactory", llamafactory.read),
    _Reader("axolotl", axolotl.read),
    _Reader("unsloth", unsloth.read),
    _Reader("trl", trl.read),
    _Reader("transformers", transformers_run.read),
)
_LOOKED_FOR = (
    "gradian_run.json, trainer_state.json (also in checkpoint-N), training_args.bin, adapter_config.json, "
    "README.md of a trainer, axolotl's or LLaMA-Factory's YAML"
)


def read_run_folder(folder: str | Path) -> RunArtifact:
    """Return the run that a folder holds.

    Args:
        folder: the trainer's output folder, or one of its checkpoints.

    Returns:
        The record. What is there and cannot be read is in its `unread`.

    Raises:
        RunError: there is no such folder, or nothing in it that a trainer writes.
    """
    # These functions take what no path can be for what is not there: too long a name, a `~user` that is nobody.
    path = Path(os.path.expanduser(folder))
    if not os.path.isdir(path):
        raise RunError(
            "there is no such run folder" if not os.path.exists(path) else "a run is a folder, not a file",
            where=str(folder),
            fix=f"pass the folder that it is in, {path.parent}" if os.path.exists(path) else None,
        )
    run = _read(path)
    if run is not None:
        return run
    raise RunError(
        "the folder holds nothing that a trainer writes",
        where=str(folder),
        expected=_LOOKED_FOR,
        fix=_inner(path),
    )


def _inner(path: Path) -> str | None:
    """Return the advice to pass a folder inside it, where one of them is a run's."""
    files = RunFiles(path)
    for name in files.folders()[:20]:
        if _read(path / name) is not None:
            return f"pass {path / name}, which does"
    return None


def _read(folder: Path) -> RunArtifact | None:
    files = RunFiles(folder)
    contents = read_contents(files)
    for reader in _READERS:
        reading = reader.read(contents)
        if reading is not None:
            return _artifact(contents, reader.trainer, reading)
    return _artifact(contents, "unknown", Reading(Settings())) if files.unread else None


def _artifact(contents: Contents, trainer: Trainer, reading: Reading) -> RunArtifact:
    settings = reading.settings.over(card_settings(contents)).over(state_settings(contents))
    settings = settings.over(_results_settings(contents)).over(reading.defaults)
    if contents.pad_token is not None:
        token, source = contents.pad_token
        # A tokenizer's own counts only where the trainer was not told another.
        if not settings.values.get("pad_token"):
            settings = Settings.of(source, {"pad_token": token}).over(settings)
    sources = dict(settings.sources)
    base_model, base_source = _base_model(contents, reading)
    if base_source:
        sources["base_model"] = base_source
    state = contents.state or reading.state
    lora = contents.lora or reading.lora
    return RunArtifact(
        folder=contents.files.folder,
        trainer=trainer,
        hyper=HyperParameters(
            **{name: value for name, value in settings.values.items() if value is not None}
        ),
        lora=lora,
        base_model=base_model,
        train_log=state.train_log if state else (),
        eval_log=state.eval_log if state else (),
        summary=(state.summary if state else None) or _summary(contents),
        global_step=state.global_step if state else None,
        total_steps=state.total_steps if state else None,
        checkpoint=contents.checkpoint,
        resumes=state.resumes if state else (),
        n_train_rows=reading.n_train_rows or as_int(contents.results.get("train_samples", (None,))[0]),
        versions=_versions(contents, reading),
        sources=sources,
        unread=tuple(contents.files.unread),
        has_log=state is not None,
    )


def _results_settings(contents: Contents) -> Settings:
    rows, file = contents.results.get("eval_samples", (None, ""))
    count = as_int(rows)
    return Settings() if count is None else Settings.of(f"{file}: eval_samples", {"eval_rows": count})


def _summary(contents: Contents) -> Mapping[str, float]:
    return totals(
        {name: value for name, (value, _) in contents.results.items() if not name.startswith("eval_")}
    )


def _base_model(contents: Contents, reading: Reading) -> tuple[str | None, str | None]:
    if contents.base_model:
        return contents.base_model, f"{contents.adapter_file}: base_model_name_or_path"
    if reading.base_model:
        return reading.base_model
    if contents.card.base_model:
        return contents.card.base_model, "README.md: base_model"
    return None, None


def _versions(contents: Contents, reading: Reading) -> dict[str, str]:
    found: dict[str, str] = {}
    peft: Any = contents.lora.raw.get("peft_version") if contents.lora else None
    if isinstance(peft, str):
        found["peft"] = peft
    return {**found, **contents.card.versions, **reading.versions}
