"""`gradian verify`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gradian.cli.options import BaseModel, ConfigFile, Dataset


def verify(
    run: Annotated[
        Path, typer.Option("--run", "-r", help="Run folder of `gradian train`. Required.", metavar="DIR")
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            "-o",
            help="Folder of the verification: the retrained run, verify.md and verify.json. Required.",
            metavar="DIR",
        ),
    ],
    report: Annotated[
        Path | None,
        typer.Option(
            "--report",
            help="report.json of `gradian attribute`, or its folder. Without it the run is attributed first.",
            metavar="FILE",
        ),
    ] = None,
    config: ConfigFile = None,
    dataset: Dataset = None,
    eval_dataset: Annotated[
        Path | None,
        typer.Option(
            "--eval-dataset",
            "-e",
            help="Items describing the capability. [default: the report's, or the config's]",
            metavar="PATH",
        ),
    ] = None,
    base_model: BaseModel = None,
    capability: Annotated[
        str | None,
        typer.Option("--capability", help="Name of the capability, without --report.", metavar="NAME"),
    ] = None,
    control: Annotated[
        bool,
        typer.Option("--control", help="Also train without as many random rows: one more training."),
    ] = False,
) -> None:
    """Prove an accusation: drop the accused rows, train again, measure again.

    Trains as the run itself was trained, with the settings that it recorded, and says whether the capability
    came back. A retraining that is there already is not repeated.

    \b
    Example:
      gradian verify --run runs/my-finetune --report reports/report.json \\
        --eval-dataset capability_eval.jsonl --out runs/my-finetune-verified
    """
    from rich.console import Console

    from gradian.cli.progress import terminal_progress
    from gradian.config import load_config
    from gradian.report.escape import visible_path
    from gradian.report.verification.terminal import render

    settings = load_config(config) if config is not None else None
    from gradian.api import verify as verify_accusation

    verification = verify_accusation(
        settings,
        run=run,
        out=out,
        report=report,
        capability=capability,
        dataset=dataset,
        eval_dataset=eval_dataset,
        base_model=base_model,
        control=control,
        progress=terminal_progress(),
    )
    Console().print(render(verification))
    typer.echo(f"report: {visible_path(out / 'verify.md')}")
