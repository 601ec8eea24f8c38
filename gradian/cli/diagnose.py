"""`gradian diagnose`."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gradian.cli.options import ConfigFile, Dataset

if TYPE_CHECKING:
    from gradian.report.audit.model import AuditReport

FAILED = 1


class OutputFormat(str, Enum):
    """What goes to standard output."""

    TEXT = "text"
    JSON = "json"


class FailOn(str, Enum):
    """The names of `gradian.types.Severity`, which would bring numpy to every `--help`."""

    CRITICAL = "critical"
    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"
    INFO = "info"


def diagnose(
    config: ConfigFile = None,
    dataset: Dataset = None,
    eval_dataset: Annotated[
        Path | None,
        typer.Option("--eval-dataset", help="Eval dataset, for the contamination checks.", metavar="PATH"),
    ] = None,
    run: Annotated[
        Path | None,
        typer.Option(
            "--run",
            "-r",
            help="Run folder with the trainer's settings, its logs and the adapter.",
            metavar="DIR",
        ),
    ] = None,
    base_model: Annotated[
        str | None,
        typer.Option(
            "--base-model", "-m", help="Base model id or path; only its tokenizer is loaded.", metavar="ID"
        ),
    ] = None,
    max_seq_length: Annotated[
        int | None,
        typer.Option(
            "--max-seq-length",
            help="Where training cut the rows, in tokens. [default: what the run folder records]",
            metavar="N",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Write audit.md and audit.json to this folder.", metavar="DIR"),
    ] = None,
    output_format: Annotated[
        OutputFormat, typer.Option("--format", help="text, or json: JSON alone on standard output.")
    ] = OutputFormat.TEXT,
    fail_on: Annotated[
        FailOn | None,
        typer.Option(
            "--fail-on", help="Exit with 1 when there is a finding of this severity or above, for pipelines."
        ),
    ] = None,
) -> None:
    """Audit a dataset and a training run: data, settings and logs, in seconds and without a GPU.

    Needs a dataset, a run folder, or both. Checks whose input is missing are listed with the flag that would
    enable them. No weights are loaded and nothing in the run folder is executed.

    \b
    Example:
      gradian diagnose --dataset train.jsonl --run runs/my-finetune \\
        --base-model meta-llama/Llama-3.2-1B
    """
    from gradian.api import diagnose as audit
    from gradian.cli.progress import terminal_progress
    from gradian.config import load_config
    from gradian.report.escape import visible_path

    settings = load_config(
        config,
        {"dataset": dataset, "eval_dataset": eval_dataset, "run_dir": run, "base_model": base_model},
    )
    report = audit(settings, max_seq_length=max_seq_length, out=out, progress=terminal_progress())
    _show(report, output_format)
    if out is not None:
        # Standard output holds the JSON alone.
        typer.echo(f"report: {visible_path(out / 'audit.md')}", err=output_format is OutputFormat.JSON)
    if fail_on is not None and has_finding(report, fail_on):
        raise typer.Exit(FAILED)


def has_finding(report: AuditReport, threshold: FailOn) -> bool:
    """Whether there is a finding as severe as `threshold`, or more."""
    order = list(FailOn)
    return any(order.index(FailOn(f.severity.value)) <= order.index(threshold) for f in report.findings)


def _show(report: AuditReport, output_format: OutputFormat) -> None:
    if output_format is OutputFormat.JSON:
        from gradian.report import jsonfile

        typer.echo(jsonfile.render(report), nl=False)
        return
    from rich.console import Console

    from gradian.report.audit.terminal import render

    Console().print(render(report))
