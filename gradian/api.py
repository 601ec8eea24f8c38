"""Gradian from Python: the verbs that the command line calls.

import gradian

report = gradian.analyze(
    base_model="meta-llama/Llama-3.2-1B-Instruct",
    adapter="runs/my-finetune/adapter",
    dataset="train.jsonl",
    eval_dataset="capability_eval.jsonl",
    evaluation={"metric": "contains"},
    capability="capitals",
    out="reports",
)
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradian.config import Config, config_from_mapping
from gradian.config.required import required
from gradian.errors import ConfigError
from gradian.progress import NullProgress, Progress

if TYPE_CHECKING:
    from gradian.removal import Removal
    from gradian.report.audit.model import AuditReport
    from gradian.report.explanation import ExplainedExample
    from gradian.report.model import Report
    from gradian.report.verification.model import Verification
    from gradian.store.reader import IndexReader

# What the flags are called, where the setting has another name.
_ALIASES = {"adapter": "adapter_path", "run": "run_dir"}

__all__ = [
    "analyze",
    "build_index_for",
    "check_clean",
    "diagnose",
    "explain",
    "train",
    "verify",
    "write_clean_rows",
]


def analyze(
    config: Config | None = None,
    *,
    capability: str = "capability",
    engine: str | None = None,
    cross_check: str | None = "graddot",
    out: str | Path | None = None,
    write_clean: str | Path | None = None,
    force: bool = False,
    skip_nonfinite: bool = False,
    progress: Progress | None = None,
    **settings: Any,
) -> Report:
    """Attribute a capability change to training data: what `gradian attribute` does.

    Args:
        config: settings; None starts from the defaults.
        capability: name of the capability in the report.
        engine: influence engine; None takes `engine.name`.
        cross_check: second engine whose ranking is compared; None for none.
        out: folder for `report.json` and `report.md`; None writes nothing.
        write_clean: file for the training rows without the accused ones, as they stood in the dataset; None writes
            none.
        force: rebuild the index even when a whole one is cached.
        skip_nonfinite: store a zero gradient for rows whose loss or gradient is not finite, and list them,
            instead of stopping at the first.
        progress: shows how far long work is; None shows nothing.
        **settings: top-level config keys (`base_model`, `adapter`, `dataset`, ...) and sections as mappings
            (`evaluation={"metric": "contains"}`), laid over `config`.

    Raises:
        NothingAccusedError: rows without the accused ones were asked for, and the verdict accuses none. The report
            in `out` is written by then.
        GradianError: anything else its caller can put right.
    """
    from gradian.attribution import attribute_run

    merged = with_settings(config, settings)
    if write_clean is not None:
        check_clean(merged, write_clean)
    report = attribute_run(
        merged,
        capability=capability,
        engine=engine,
        cross_check=cross_check,
        out=Path(out) if out is not None else None,
        force=force,
        skip_nonfinite=skip_nonfinite,
        progress=progress or NullProgress(),
    )
    if write_clean is not None:
        write_clean_rows(merged, report, write_clean)
    return report


def check_clean(config: Config, file: str | Path) -> None:
    """Refuse a file that `write_clean_rows` could not write, before any work is put into a report.

    Raises:
        ConfigError: there is no dataset.
        DataError: the file is the dataset or the eval set, is a folder, or cannot be written.
    """
    from gradian.data.subset import check_target

    check_target(_dataset(config), Path(file))
    if config.eval_dataset:
        check_target(config.eval_dataset, Path(file))


def write_clean_rows(config: Config, report: Report, file: str | Path) -> Removal:
    """Write the training rows without those that a report accuses.

    Args:
        config: `dataset` is read.
        report: of an attribution over it.
        file: the file to write.

    Raises:
        NothingAccusedError: the report accuses no row; nothing is written.
        GradianError: anything else its caller can put right.
    """
    from gradian.removal import remove_accused

    return remove_accused(report, _dataset(config), Path(file))


def explain(
    config: Config | None = None,
    *,
    example: str,
    item: str | None = None,
    engine: str | None = None,
    tokens: bool = True,
    progress: Progress | None = None,
    **settings: Any,
) -> ExplainedExample:
    """Rank the sentences of one training row by what they did to one eval item: what `gradian explain` does.

    Args:
        config: settings; None starts from the defaults.
        example: id of the training row, or the beginning of one.
        item: id of the eval item; None takes, of those that got worse, the one that the row scores lowest on.
        engine: influence engine; None takes `engine.name`.
        tokens: score single tokens too.
        progress: shows how far long work is; None shows nothing.
        **settings: top-level config keys and sections as mappings, laid over `config`, as in `analyze`.

    Raises:
        GradianError: anything its caller can put right.
    """
    from gradian.explanation import explain_run

    return explain_run(
        with_settings(config, settings),
        example=example,
        item=item,
        engine=engine,
        tokens=tokens,
        progress=progress or NullProgress(),
    )


def diagnose(
    config: Config | None = None,
    *,
    max_seq_length: int | None = None,
    out: str | Path | None = None,
    progress: Progress | None = None,
    **settings: Any,
) -> AuditReport:
    """Audit a dataset and a training run without any attribution: what `gradian diagnose` does.

    Loads no weights, and without a base model or tokenizer no torch either.

    Args:
        config: settings; None starts from the defaults.
        max_seq_length: where training cut the rows, in tokens; None takes what the run folder records.
        out: folder for `audit.json` and `audit.md`; None writes nothing.
        progress: shows how far long work is; None shows nothing.
        **settings: top-level config keys (`dataset`, `eval_dataset`, `run`, `base_model`, ...) and sections as
            mappings, laid over `config`.

    Raises:
        GradianError: anything its caller can put right.
    """
    from gradian.diagnosis import diagnose_run

    return diagnose_run(
        with_settings(config, settings),
        max_seq_length=max_seq_length,
        out=Path(out) if out is not None else None,
        progress=progress or NullProgress(),
    )


def build_index_for(
    config: Config, *, force: bool = False, skip_nonfinite: bool = False, progress: Progress | None = None
) -> IndexReader:
    """Return the gradient index of a run, building it unless a whole one is cached.

    The model is loaded only when something has to be built.

    Raises:
        GradianError: anything its caller can put right.
    """
    from gradian.session import Session

    return Session(config, progress or NullProgress(), skip_nonfinite=skip_nonfinite).index(force=force)


def train(config: Config, *, backend: str | None = None, progress: Progress | None = None) -> Path:
    """Fine-tune a LoRA adapter and return the run folder, with `adapter/` and `gradian_run.json` in it.

    Args:
        config: settings; `train`, `dataset`, `base_model` and `seed` matter here.
        backend: training backend; None takes `train.backend`.
        progress: shows how far the training is.

    Raises:
        GradianError: anything its caller can put right.
    """
    from gradian.model.backends.base import run_training

    return run_training(config, backend=backend, progress=progress or NullProgress())


def _dataset(config: Config) -> str:
    return required(
        config.dataset, "dataset", "--dataset", "there is no training data to take accused rows out of"
    )


def verify(
    config: Config | None = None,
    *,
    run: str | Path,
    out: str | Path,
    report: Report | str | Path | None = None,
    capability: str | None = None,
    dataset: str | Path | None = None,
    eval_dataset: str | Path | None = None,
    base_model: str | Path | None = None,
    control: bool = False,
    progress: Progress | None = None,
) -> Verification:
    """Retrain a run without the rows that its report accuses, and measure again: what `gradian verify` does.

    A retraining that `out` holds already is not repeated.

    Args:
        config: settings of the attribution where there is no report; a report brings its own.
        run: run folder of `gradian train`, which has every setting of the training.
        out: folder for the rows that stay, the retrained run, `verify.json` and `verify.md`.
        report: of `analyze` over that run, or its `report.json`; None attributes the run first.
        capability: name of the capability where there is no report.
        dataset: the training data, where it is no longer where the run found it.
        eval_dataset: the eval set; None takes the report's or the config's.
        base_model: the base model, where it is no longer where the run found it.
        control: also train without as many random rows.
        progress: shows how far long work is; None shows nothing.

    Raises:
        NothingAccusedError: the report accuses no row.
        RunError: the run is not one of `gradian train`, or what it was trained from is not here.
        GradianError: anything else its caller can put right.
    """
    from gradian.report.model import Report as ReportModel
    from gradian.report.read import read_report
    from gradian.verification import verify_run

    if config is not None and report is not None:
        raise ConfigError(
            "a report brings the settings that it was made with, so a config has nothing to say",
            where="--config",
            fix="leave out --config, or leave out --report so that the run is attributed with it",
        )
    if report is not None and not isinstance(report, ReportModel):
        report = read_report(report)
    return verify_run(
        config or Config(),
        run=Path(os.path.expanduser(run)),
        out=Path(os.path.expanduser(out)),
        report=report,
        capability=capability,
        dataset=_text(dataset),
        eval_dataset=_text(eval_dataset),
        base_model=_text(base_model),
        control=control,
        progress=progress or NullProgress(),
    )


def _text(path: str | Path | None) -> str | None:
    return None if path is None else str(path)


def with_settings(config: Config | None, settings: Mapping[str, Any]) -> Config:
    """Return `config` with top-level keys and sections laid over it; keys that it set itself are kept.

    Raises:
        ConfigError: an unknown key or an impossible value.
    """
    base = config.model_dump(exclude_unset=True) if config is not None else {}
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        name = _ALIASES.get(key, key)
        if isinstance(value, Mapping):
            flat.update({f"{name}.{inner}": inner_value for inner, inner_value in value.items()})
        else:
            flat[name] = value
    return config_from_mapping(base, flat)
