"""The options that several commands share, each declared once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ConfigFile = Annotated[
    Path | None, typer.Option("--config", "-c", help="YAML config file; flags override it.", metavar="FILE")
]
Dataset = Annotated[Path | None, typer.Option("--dataset", "-d", help="Training dataset.", metavar="PATH")]
EvalDataset = Annotated[
    Path | None,
    typer.Option(
        "--eval-dataset",
        "-e",
        help="Items describing the capability, with the answers you wanted.",
        metavar="PATH",
    ),
]
Engine = Annotated[
    str | None,
    typer.Option(
        "--engine",
        help="Engine: datainf, graddot or tracin. [default: the config's, datainf]",
        metavar="NAME",
    ),
]
BaseModel = Annotated[
    str | None, typer.Option("--base-model", "-m", help="Base model id or path.", metavar="ID")
]
SkipNonfinite = Annotated[
    bool,
    typer.Option(
        "--skip-nonfinite",
        help="Store a zero gradient for rows whose loss or gradient is not finite, and list them, instead of stopping.",
    ),
]
Adapter = Annotated[Path | None, typer.Option("--adapter", "-a", help="LoRA adapter folder.", metavar="DIR")]
