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

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradian.config import Config, config_from_mapping
from gradian.progress import NullProgress, Progress

if TYPE_CHECKING:
    from gradian.report.audit.model import AuditReport
    from gradian.report.explanation import ExplainedExample
    from gradian.report.model import Report
    from gradian.store.reader import IndexReader

# What the flags are called, where the setting has another name.
_ALIASES = {"adapter": "adapter_path", "run": "run_dir"}

__all__ = ["analyze", "build_index_for", "diagnose", "explain", "train"]


def analyze(
    config: Config | None = None,
    *,
    capability: str = "capability",
    engine: str | None = None,
    cross_check: str | None = "graddot",
    out: str | Path | None = None,
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
        force: rebuild the index even when a whole one is cached.
        skip_nonfinite: store a zero gradient for rows whose loss or gradient is not finite, and list them,
            instead of stopping at the first.
        progress: shows how far long work is; None shows nothing.
        **settings: top-level config keys (`base_model`, `adapter`, `dataset`, ...) and sections as mappings
            (`evaluation={"metric": "contains"}`), laid over `config`.

    Raises:
        GradianError: anything its caller can put right.
    """
    from gradian.attribution import attribute_run

    return attribute_run(
        with_settings(config, settings),
        capability=capability,
        engine=engine,
        cross_check=cross_check,
        out=Path(out) if out is not None else None,
        force=force,
        skip_nonfinite=skip_nonfinite,
        progress=progress or NullProgress(),
    )


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
