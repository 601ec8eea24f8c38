"""The log of the Hugging Face trainer: `log_history` of `trainer_state.json`, whichever library wrote it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gradian.runs.artifact import EvalRow, LogRow, Resume
from gradian.runs.scalars import as_count, as_float, as_int

FILE = "trainer_state.json"
_EVAL = "eval_"
_TRAIN_KEYS = ("loss", "grad_norm", "learning_rate")
# Rows of a trained model's totals have no `loss` of their own.
_TOTALS = ("train_loss", "train_runtime")
_EVAL_SUFFIXES = ("_runtime", "_loss")
# Of one row; each is looked for among all of its keys.
_MOST_EVAL_SETS = 100


@dataclass(frozen=True)
class TrainerState:
    """A trainer's state.

    Attributes:
        train_log, eval_log: in order of steps; a row logged again after a resume replaces the earlier one.
        summary: totals of the last row that has any.
        resumes: times that the log went back.
        global_step: optimizer steps taken.
        total_steps: optimizer steps planned.
        epochs: passes over the data that were planned, rounded up by the trainer.
        batch: rows in one forward pass on all devices of one process.
    """

    train_log: tuple[LogRow, ...] = ()
    eval_log: tuple[EvalRow, ...] = ()
    summary: Mapping[str, float] = field(default_factory=dict)
    resumes: tuple[Resume, ...] = ()
    global_step: int | None = None
    total_steps: int | None = None
    epochs: int | None = None
    batch: int | None = None


def parse_state(data: Mapping[str, Any], batches: Sequence[tuple[int, int]] = ()) -> TrainerState:
    """Return the state behind a `trainer_state.json`; values of a kind that cannot be are left out.

    Args:
        data: the file.
        batches: (step, batch size) of each of the run's checkpoints, in order.
    """
    rows = data.get("log_history")
    rows = [row for row in rows if isinstance(row, Mapping)] if isinstance(rows, list) else []
    train, evals = _train_rows(rows), _eval_rows(rows)
    return TrainerState(
        train_log=tuple(sorted({row.step: row for row in train}.values(), key=lambda row: row.step)),
        eval_log=tuple(
            sorted({(row.step, row.name): row for row in evals}.values(), key=lambda row: row.step)
        ),
        summary=_summary(rows),
        resumes=_resumes(rows, batches),
        global_step=as_count(data.get("global_step")),
        total_steps=as_count(data.get("max_steps")),
        epochs=as_count(data.get("num_train_epochs")),
        batch=as_count(data.get("train_batch_size")),
    )


def _step(row: Mapping[str, Any]) -> int:
    step = as_int(row.get("step"))
    return 0 if step is None or step < 0 else step


def _is_eval(row: Mapping[str, Any]) -> bool:
    return any(isinstance(key, str) and key.startswith(_EVAL) for key in row)


def _is_train(row: Mapping[str, Any]) -> bool:
    return not _is_eval(row) and any(key in row for key in _TRAIN_KEYS)


def _train_rows(rows: Iterable[Mapping[str, Any]]) -> list[LogRow]:
    return [
        LogRow(
            step=_step(row),
            loss=as_float(row.get("loss")),
            grad_norm=as_float(row.get("grad_norm")),
            learning_rate=as_float(row.get("learning_rate")),
            epoch=as_float(row.get("epoch")),
        )
        for row in rows
        if _is_train(row)
    ]


def _eval_names(row: Mapping[str, Any]) -> list[str]:
    """Return the eval sets of a row: "" for the only one (`eval_loss`), `math` for `eval_math_loss`."""
    if any(f"eval{suffix}" in row for suffix in _EVAL_SUFFIXES):
        return [""]
    for suffix in _EVAL_SUFFIXES:
        names = [
            key.removeprefix(_EVAL).removesuffix(suffix)
            for key in row
            if key.startswith(_EVAL) and key.endswith(suffix)
        ]
        if names:
            return names[:_MOST_EVAL_SETS]
    return [""]


def _eval_rows(rows: Iterable[Mapping[str, Any]]) -> list[EvalRow]:
    found = []
    for row in rows:
        if not _is_eval(row):
            continue
        for name in _eval_names(row):
            prefix = f"{_EVAL}{name}_" if name else _EVAL
            numbers = {
                key.removeprefix(prefix): as_float(value)
                for key, value in row.items()
                if key.startswith(prefix)
            }
            loss = numbers.pop("loss", None)
            metrics = {key: number for key, number in numbers.items() if number is not None}
            found.append(EvalRow(_step(row), loss, name, as_float(row.get("epoch")), metrics))
    return found


def _summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    for row in reversed(rows):
        if any(key in row for key in _TOTALS) and not _is_train(row):
            return totals(row)
    return {}


def totals(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a row of totals, or of a `train_results.json`."""
    numbers = {key: as_float(value) for key, value in row.items() if key != "step"}
    return {key: number for key, number in numbers.items() if number is not None}


def _resumes(rows: Sequence[Mapping[str, Any]], batches: Sequence[tuple[int, int]]) -> tuple[Resume, ...]:
    sizes = tuple(size for _, size in batches)
    changed = tuple(size for size, last in zip(sizes, (0, *sizes), strict=False) if size != last)
    changed = changed if len(changed) > 1 else ()
    stretches: list[list[int]] = []
    for step in (_step(row) for row in rows if "step" in row):
        if not stretches or step < stretches[-1][-1]:
            stretches.append([])
        stretches[-1].append(step)
    found = []
    before: set[int] = set()
    for stretch in stretches:
        if before:
            found.append(Resume(stretch[0], tuple(sorted(before.intersection(stretch))), changed))
        before.update(stretch)
    if changed and not found:
        # It went on where it had stopped, so that only the batch size tells.
        last_of_first = max(step for step, size in batches if size == changed[0])
        found.append(Resume(last_of_first, (), changed))
    return tuple(found)
