"""`gradian attribute`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gradian.cli.options import Adapter, BaseModel, ConfigFile, Dataset, Engine, EvalDataset, SkipNonfinite

NO_CROSS_CHECK = "none"


def attribute(
    config: ConfigFile = None,
    dataset: Dataset = None,
    eval_dataset: EvalDataset = None,
    base_model: BaseModel = None,
    adapter: Adapter = None,
    run: Annotated[
        Path | None,
        typer.Option(
            "--run",
            "-r",
            help="Run folder of the trainer: merges the audit of settings, logs and data into the report.",
            metavar="DIR",
        ),
    ] = None,
    capability: Annotated[
        str, typer.Option("--capability", help="Name of the capability in the report.", metavar="NAME")
    ] = "capability",
    engine: Engine = None,
    cross_check: Annotated[
        str,
        typer.Option("--cross-check", help="Second engine for rank agreement, or none.", metavar="NAME"),
    ] = "graddot",
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write the report to this folder.", metavar="DIR")
    ] = None,
    write_clean: Annotated[
        Path | None,
        typer.Option(
            "--write-clean",
            help="Write the training rows without the accused ones to this file, each as it stood in the dataset.",
            metavar="FILE",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Rebuild the index.")] = False,
    skip_nonfinite: SkipNonfinite = False,
) -> None:
    """Attribute a capability change to training data, and report the verdict.

    Needs a base model, an adapter and a dataset, from flags or the config. Without an eval dataset
    there is nothing to explain: the report is then a smoke test and says so.

    \b
    Example:
      gradian attribute --base-model meta-llama/Llama-3.2-1B-Instruct \\
        --adapter runs/my-finetune/adapter --dataset train.jsonl \\
        --eval-dataset capability_eval.jsonl --capability json_formatting --out reports/
    """
    from rich.console import Console

    from gradian.cli.progress import terminal_progress
    from gradian.config import load_config
    from gradian.report.terminal import render

    settings = load_config(
        config,
        {
            "dataset": dataset,
            "eval_dataset": eval_dataset,
            "base_model": base_model,
            "adapter_path": adapter,
            "run_dir": run,
        },
    )
    from gradian.api import analyze, check_clean, write_clean_rows
    from gradian.removal import removal_lines
    from gradian.report.escape import visible, visible_path

    if write_clean is not None:
        check_clean(settings, write_clean)
    report = analyze(
        settings,
        capability=capability,
        engine=engine,
        cross_check=None if cross_check == NO_CROSS_CHECK else cross_check,
        out=out,
        force=force,
        skip_nonfinite=skip_nonfinite,
        progress=terminal_progress(),
    )
    Console().print(render(report))
    if out is not None:
        typer.echo(f"report: {visible_path(out / 'report.md')}")
    if write_clean is not None:
        # After the report, which is worth having even where it accuses nothing.
        removal = write_clean_rows(settings, report, write_clean)
        for line in removal_lines(removal):
            typer.echo(visible(line, None))
