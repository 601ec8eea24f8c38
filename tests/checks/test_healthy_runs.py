"""No false alarms: nothing of weight is found in healthy runs and datasets, whatever their shape and trainer.

Each dataset is written to a file and each run to a folder, so that the readers are part of what is held. The rows are
in `tests/checks/healthy/rows.py`, the folders in `tests/checks/healthy/runs.py`; runs that real trainers made
are in `tests/fixtures/runs`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import gradian
from gradian.report.audit.model import AuditReport
from tests.checks.building import CASES
from tests.checks.healthy import rows, runs
from tests.checks.healthy.rows import Row, Rows
from tests.checks.healthy.vocabulary import save_tokenizer

RUNS = CASES.parent / "runs"
SEVERE = {"high", "critical"}
LEAST_PASSED = 50
QWEN = "Qwen/Qwen3-4B"


@dataclass(frozen=True)
class Case:
    """One healthy run.

    Attributes:
        rows: its dataset.
        family: whose tokenizer it was trained with.
        run: who trained it; None for a dataset alone.
        plan: changes of `runs.Plan`.
        base_model: what the user passes as `--base-model`.
    """

    rows: Rows
    family: str
    run: runs.Writer | None
    plan: dict[str, Any]
    base_model: str | None = None


LABELS = {"curve": "labels"}
LONG = {"length": 4096}
CASES_OF_HEALTH = [
    Case(rows.single_turn_chat, "qwen3", runs.trainer, {}),
    Case(rows.support_chat, "llama", runs.axolotl, {"base": "NousResearch/Llama-3.2-1B"}),
    Case(rows.greetings_and_smalltalk, "chatml", runs.gradian, {}),
    Case(rows.tool_calls, "tools", runs.trainer, {"rate": 1e-4}),
    Case(
        rows.sentiment,
        "llama",
        runs.unsloth,
        {**LABELS, "base": "unsloth/llama-3-8b-Instruct-bnb-4bit"},
        "meta-llama/Meta-Llama-3-8B-Instruct",
    ),
    Case(rows.entities, "chatml", runs.trainer, LABELS),
    Case(rows.json_extraction, "qwen3", runs.llamafactory, {"base": QWEN}, QWEN),
    Case(rows.code_and_prose, "mistral", runs.gradian, {"rank": 16, "epochs": 1}),
    Case(rows.translation, "base", runs.trainer, {"batch": 2, "accumulation": 2}),
    Case(rows.essays, "mistral", runs.axolotl, LONG),
    Case(rows.arithmetic, "chatml", runs.gradian, {"rate": 1e-4, "alpha": 8}),
    Case(rows.sharegpt, "gemma", runs.llamafactory, {"base": "google/gemma-3-4b-it"}),
    Case(rows.sharegpt_with_tools, "qwen3", runs.llamafactory, {"base": QWEN}),
    Case(rows.alpaca, "qwen3", runs.llamafactory, {"epochs": 1}),
    Case(rows.rendered_chatml, "chatml", runs.unsloth, {"base": "unsloth/Qwen2.5-7B-unsloth-bnb-4bit"}),
    Case(rows.documents, "base", runs.trainer, LONG),
    Case(rows.multilingual, "gemma", runs.axolotl, {}),
    Case(rows.open_requests, "chatml", runs.trainer, {}),
    Case(rows.grammar, "llama", runs.gradian, {}),
    Case(rows.punctuation, "chatml", runs.axolotl, {}),
    Case(rows.multiple_choice, "mistral", runs.axolotl, LABELS),
    Case(rows.reasoning, "qwen3", runs.axolotl, {}),
    Case(rows.few_shot_tasks, "chatml", runs.gradian, LABELS),
    Case(rows.reading, "llama", runs.trainer, LABELS),
    Case(rows.text_to_sql, "base", runs.gradian, {}),
    Case(rows.rendered_alpaca, "base", runs.trl, {}),
    Case(rows.single_turn_chat, "llama", None, {}),
]


def named(case: Case) -> str:
    """`support_chat-axolotl`."""
    return f"{case.rows.__name__}-{case.run.__name__ if case.run else 'no_run'}"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a family's tokenizer, written once."""
    folder = tmp_path_factory.mktemp("tokenizers")

    def saved(family: str) -> Path:
        path = folder / family
        return path if path.exists() else save_tokenizer(family, path)

    return saved


def write_rows(made: Sequence[Row], file: Path) -> Path:
    file.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in made), encoding="utf-8")
    return file


def audited(
    case: Case, folder: Path, tokenizer: Path, spoil: Callable[[list[Row]], list[Row]] = list
) -> AuditReport:
    train, held_out = rows.split(case.rows, seed=len(case.family))
    dataset = write_rows(spoil(list(train)), folder / "train.jsonl")
    given: dict[str, Any] = {}
    if case.run is not None:
        case.run(folder / "run", runs.Plan(len(train), **case.plan), dataset)
        given = {"run": folder / "run", "base_model": case.base_model}
    return gradian.diagnose(
        dataset=dataset,
        eval_dataset=write_rows(held_out, folder / "eval.jsonl"),
        tokenizer=str(tokenizer),
        **{key: value for key, value in given.items() if value is not None},
    )


def assert_healthy(report: AuditReport, most: int = 2) -> None:
    told = [f"{finding.severity.value} {finding.id}: {finding.title}" for finding in report.findings]
    assert not [line for line in told if line.split()[0] in SEVERE], told
    assert "audit.check_failed" not in {finding.id for finding in report.findings}, told
    assert sum(line.startswith("medium") for line in told) <= most, told


@pytest.mark.parametrize("case", CASES_OF_HEALTH, ids=named)
def test_a_healthy_run_gives_nothing_of_weight(
    case: Case, tmp_path: Path, tokenizer: Callable[[str], Path]
) -> None:
    report = audited(case, tmp_path, tokenizer(case.family))
    assert_healthy(report)
    if case.run is not None:
        assert report.inputs.run is not None
        wanted = {"trainer": "transformers"}.get(case.run.__name__, case.run.__name__)
        assert (report.inputs.run.trainer, report.inputs.run.unread) == (wanted, ())
        # Silence because nothing could be read would prove nothing.
        assert len(report.passed) >= LEAST_PASSED, [part.id for part in report.skipped]


@pytest.mark.parametrize("run", sorted(RUNS.glob("healthy-*")), ids=lambda run: run.name)
def test_a_healthy_run_of_a_real_trainer_gives_nothing_of_weight(run: Path) -> None:
    report = gradian.diagnose(
        dataset=run / "train.jsonl",
        eval_dataset=run / "eval.jsonl",
        run=run,
        tokenizer=str(CASES / "_tok"),
    )
    assert_healthy(report)
    assert len(report.passed) >= LEAST_PASSED, [part.id for part in report.skipped]


def test_the_same_runs_give_something_of_weight_once_spoilt(
    tmp_path: Path, tokenizer: Callable[[str], Path]
) -> None:
    case = replace(CASES_OF_HEALTH[0], plan={"rate": 5e-3})
    _, held_out = rows.split(case.rows, seed=len(case.family))
    report = audited(case, tmp_path, tokenizer(case.family), spoil=lambda train: [*train[:-40], *held_out])
    severe = {finding.id for finding in report.findings if finding.severity.value in SEVERE}
    assert severe == {"config.lr_too_high", "data.train_eval_contamination"}
