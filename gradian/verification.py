"""Drops the rows that a report accuses, trains again as the run itself was trained, and measures again."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gradian.attribution import attribute_run
from gradian.config import Config, config_from_mapping
from gradian.config.required import required
from gradian.data.formats import load_dataset, split_path
from gradian.data.subset import write_subset
from gradian.errors import ConfigError, RunError
from gradian.evaluation.capability import CapabilityResult, measure_capability
from gradian.model.backends.base import ADAPTER_FOLDER, run_training
from gradian.model.checkpoint import checkpoint_fingerprint
from gradian.model.load import load_model
from gradian.progress import Progress
from gradian.removal import check_rows
from gradian.report.accused import Accused, accused_rows
from gradian.report.model import Report
from gradian.report.verification.build import Retraining, build_verification
from gradian.report.verification.model import Verification
from gradian.report.write import check_writable, write_verification
from gradian.runs.gradian_run import RUN_FILE, GradianRun, read_run
from gradian.runs.read import read_run_folder
from gradian.types import Example

log = logging.getLogger(__name__)

# Inside the folder of a verification.
ROUND_1 = "round-1"
RETRAINED = "retrained"
CONTROL = "control"
# Recorded under `inputs`, and as good as settings: they decide the adapter's bytes.
_RECORDED = ("device", "dtype", "attn_implementation")


@dataclass(frozen=True)
class _Rounds:
    """What both rounds share.

    Attributes:
        measuring: settings of attribution and measurement; `adapter_path` is the first round's.
        training: settings of the run itself.
        backend: that trained it.
        record: its record.
        run: its folder.
        out: folder of the verification.
        progress: shows how far long work is.
    """

    measuring: Config
    training: Config
    backend: str
    record: GradianRun
    run: Path
    out: Path
    progress: Progress


def verify_run(
    config: Config,
    *,
    run: Path,
    out: Path,
    report: Report | None,
    capability: str | None,
    dataset: str | None,
    eval_dataset: str | None,
    base_model: str | None,
    control: bool,
    progress: Progress,
) -> Verification:
    """Verify one report by retraining; see `gradian.api.verify`."""
    if report is not None:
        # Before anything is loaded: there may be nothing to drop.
        accused_rows(report)
        config = _settings_of(report)
    record = _record(run)
    check_writable(out)
    rounds = _rounds(config, record, run, out, dataset, eval_dataset, base_model, progress)
    evals = _eval_examples(rounds.measuring)
    _check_repeatable(rounds)
    if report is None:
        report = attribute_run(
            rounds.measuring,
            capability=capability or "capability",
            engine=None,
            cross_check="graddot",
            out=out / ROUND_1,
            force=False,
            skip_nonfinite=False,
            progress=progress,
        )
        log.info("attributed: %s", out / ROUND_1 / "report.md")
        progress.keep("round 1", lambda: f"the report in {out / ROUND_1}")
    else:
        _check_report(report, rounds, evals)
    accused = accused_rows(report)
    source = rounds.training.dataset or ""
    check_rows(report, source)
    log.info(
        "dropping %d of %d rows, cluster %s, and training again",
        len(accused.rows),
        accused.n,
        accused.cluster,
    )
    name = report.capability.name if report.capability else ""
    after, again = _retrain(rounds, RETRAINED, accused.rows, accused.ids, evals, name)
    notes = [*_differences(record, again), *_base_notes(report, after.measured)]
    compared = None
    if control:
        rows = control_rows(accused, record.seed)
        if rows:
            ids = tuple(report.examples[row].id for row in rows)
            log.info("control: dropping as many other rows, and training again")
            compared, _ = _retrain(rounds, CONTROL, rows, ids, evals, name)
        else:
            notes.append("There is no control: fewer rows stay than were dropped.")
    verification = build_verification(
        report=report,
        accused=accused,
        run=str(run),
        after=after,
        control=compared,
        evaluation=rounds.measuring.evaluation,
        seed=rounds.measuring.seed,
        notes=notes,
        provenance={
            "report": {key: report.provenance.get(key) for key in ("config", "eval_dataset", "versions")},
            "index": _index(report).get("id"),
            "run": {"inputs": dict(record.inputs), "versions": dict(record.versions)},
            "retrained": {"inputs": dict(again.inputs), "versions": dict(again.versions)},
        },
    )
    write_verification(verification, out)
    return verification


def control_rows(accused: Accused, seed: int) -> tuple[int, ...]:
    """Return as many rows as were accused, drawn at random from the others, in order; none where fewer would stay.

    Args:
        accused: the accused rows.
        seed: of the draw.
    """
    others = np.setdiff1d(np.arange(accused.n), accused.rows)
    if len(others) <= len(accused.rows):
        return ()
    drawn = np.random.default_rng(seed).choice(others, size=len(accused.rows), replace=False)
    return tuple(int(row) for row in np.sort(drawn))


def _record(run: Path) -> GradianRun:
    record = read_run(run)
    if record is None:
        # It says what is wrong with a folder that no trainer wrote.
        trainer = read_run_folder(run).trainer
        wrote = "another trainer" if trainer in ("unknown", "gradian") else trainer
        raise RunError(
            f"only a run of `gradian train` can be repeated, and {wrote} wrote this one",
            where=str(run),
            found=f"no {RUN_FILE}, which holds the dataset's path, the seed and every setting",
            fix="write the rows that stay with `gradian attribute --write-clean FILE`, train on them as you trained before,"
            " and attribute the new adapter; or pass a folder of `gradian train` with --run",
        )
    missing = [f"inputs.{name}" for name in _RECORDED if not isinstance(record.inputs.get(name), str)]
    missing += [
        name for name, value in (("base_model", record.base_model), ("train", record.train)) if not value
    ]
    if missing:
        raise RunError(
            "the run's record does not say how it was trained",
            where=str(run / RUN_FILE),
            found=f"no {', '.join(missing)}",
            fix="train again with `gradian train`, which records it",
        )
    return record


def _rounds(
    config: Config,
    record: GradianRun,
    run: Path,
    out: Path,
    dataset: str | None,
    eval_dataset: str | None,
    base_model: str | None,
    progress: Progress,
) -> _Rounds:
    data = dataset or record.dataset.path
    path, _ = split_path(data)
    if not os.path.exists(path):
        raise RunError(
            "the run's dataset is not where the run found it",
            where=str(run / RUN_FILE),
            found=str(path),
            fix="pass its place with --dataset",
        )
    evals = required(
        eval_dataset or config.eval_dataset,
        "eval_dataset",
        "--eval-dataset",
        "there is nothing to measure before and after",
    )
    shared = {
        **config.model_dump(),
        "base_model": base_model or record.base_model,
        "adapter_path": str(run / ADAPTER_FOLDER),
        "dataset": data,
        "eval_dataset": evals,
        "run_dir": str(run),
    }
    recorded = {
        **{name: record.inputs[name] for name in _RECORDED},
        "seed": record.seed,
        "train": {**record.train, "base_model": "", "output_dir": str(run)},
    }
    where = str(run / RUN_FILE)
    return _Rounds(
        measuring=config_from_mapping(shared),
        training=config_from_mapping({**shared, **recorded}, source=where),
        backend=record.backend,
        record=record,
        run=run,
        out=out,
        progress=progress,
    )


def _settings_of(report: Report) -> Config:
    """Return the settings that the report was made with: the second round is measured as the first was."""
    settings = report.provenance.get("config")
    if isinstance(settings, Mapping) and settings.get("trust_remote_code"):
        # A report comes from anywhere: it says what was allowed then, and allows nothing.
        raise ConfigError(
            "the report was made with code of the model's own, which a report is no permission to run",
            where="--report",
            found="trust_remote_code: true",
            fix="leave --report out and give --config with trust_remote_code: true, if you trust the model's code",
        )
    try:
        return config_from_mapping(settings if isinstance(settings, Mapping) else {})
    except ConfigError as error:
        raise ConfigError(
            "the report was made by a version of Gradian with other settings",
            where="--report",
            found=error.problem,
            fix="leave --report out, so that the run is attributed again",
        ) from None


def _eval_examples(config: Config) -> Sequence[Example]:
    path = config.eval_dataset or ""
    if not os.path.exists(split_path(path)[0]):
        raise ConfigError("there is no such eval set", where=path, fix="pass its place with --eval-dataset")
    return load_dataset(path).examples


def _check_repeatable(rounds: _Rounds) -> None:
    """Refuse a run whose inputs are no longer what they were, before any training.

    Training into the run's own folder finds it finished, and nothing to do, exactly when every input is the same.
    """
    try:
        run_training(rounds.training, backend=rounds.backend, progress=rounds.progress)
    except RunError as error:
        raise RunError(
            "the run cannot be repeated: what it was trained from is not what is here",
            where=str(rounds.run),
            found=error.found,
            expected="the same rows, base model, settings and kind of device",
            fix="pass the dataset and the base model that the run was trained from (--dataset, --base-model); where it is"
            " the encoding that differs, tokens or masks are made otherwise than then, by the tokenizer's files or by"
            " this version of Gradian: run `gradian train` again, and verify that run",
        ) from None


def _check_report(report: Report, rounds: _Rounds, evals: Sequence[Example]) -> None:
    config = rounds.measuring
    here = checkpoint_fingerprint(config.base_model, config.adapter_path)
    if _inputs(report).get("checkpoint") != here:
        raise ConfigError(
            "the report is about another adapter than the run's",
            where="--report",
            expected=f"the report of {rounds.run / ADAPTER_FOLDER}",
            fix="leave --report out, so that the run is attributed again",
        )
    if [item.id for item in report.items] != [example.id for example in evals]:
        raise ConfigError(
            "the eval set is not the report's",
            where=str(config.eval_dataset),
            found=f"{len(evals)} rows",
            expected=f"the {len(report.items)} items of the report, in their order",
            fix="pass the eval set of the report with --eval-dataset",
        )


def _index(report: Report) -> Mapping[str, Any]:
    index = report.provenance.get("index")
    return index if isinstance(index, Mapping) else {}


def _inputs(report: Report) -> Mapping[str, Any]:
    inputs = _index(report).get("inputs")
    return inputs if isinstance(inputs, Mapping) else {}


def _retrain(
    rounds: _Rounds,
    name: str,
    drop: Collection[int],
    ids: tuple[str, ...],
    evals: Sequence[Example],
    capability: str,
) -> tuple[Retraining, GradianRun]:
    """Train without some rows, or find that done, and measure."""
    source = rounds.training.dataset or ""
    path, _ = split_path(source)
    suffix = path.suffix if os.path.isfile(path) else ".jsonl"
    kept = write_subset(source, rounds.out / f"{name}{suffix or '.jsonl'}", drop)
    folder = rounds.out / name
    train = rounds.training.train.model_copy(update={"output_dir": str(folder)})
    run_training(
        rounds.training.model_copy(update={"dataset": kept.source, "train": train}),
        backend=rounds.backend,
        progress=rounds.progress,
    )
    record = read_run(folder)
    if record is None:
        raise RunError("the retrained run is gone", where=str(folder))
    config = rounds.measuring.model_copy(update={"adapter_path": str(folder / ADAPTER_FOLDER)})
    with rounds.progress.task("Answering eval items", 2 * len(evals)) as advance:
        measured = measure_capability(load_model(config), evals, config, capability, advance)
    return Retraining(str(folder), kept.n, measured, ids), record


def _differences(before: GradianRun, after: GradianRun) -> list[str]:
    names = sorted({*before.versions, *after.versions})
    changed = [
        f"{name} {before.versions.get(name, 'not there')} before, {after.versions.get(name, 'not there')} now"
        for name in names
        if before.versions.get(name) != after.versions.get(name)
    ]
    return [f"The rounds were trained by other versions: {'; '.join(changed)}."] if changed else []


def _base_notes(report: Report, measured: CapabilityResult) -> list[str]:
    pairs = zip(report.items, measured.items, strict=True)
    other = sum(old.base_score != new.base_score for old, new in pairs)
    return [f"The base model itself scores otherwise on {other} items than in the report."] if other else []
