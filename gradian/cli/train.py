"""`gradian train`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gradian.cli.options import Dataset


def train(
    config: Annotated[
        Path, typer.Option("--config", "-c", help="YAML config file. Required.", metavar="FILE")
    ],
    backend: Annotated[
        str | None,
        typer.Option(
            "--backend",
            "-b",
            help="Training backend: hf, trl or unsloth. [default: the config's, hf]",
            metavar="NAME",
        ),
    ] = None,
    dataset: Dataset = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Folder of the run.", metavar="DIR")] = None,
) -> None:
    """Fine-tune a LoRA adapter: a convenience, not part of the main path.

    Writes the adapter and `gradian_run.json`, which the other commands read, and prints the folder.

    \b
    Example:
      gradian train --config gradian.yaml --backend hf --out runs/my-finetune
    """
    from gradian.cli.progress import terminal_progress
    from gradian.config import load_config
    from gradian.report.escape import visible_path

    settings = load_config(config, {"dataset": dataset, "train.output_dir": out})
    from gradian.api import train as train_adapter

    run = train_adapter(settings, backend=backend, progress=terminal_progress())
    typer.echo(visible_path(run))
