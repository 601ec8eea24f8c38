"""`gradian explain`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gradian.cli.options import Adapter, BaseModel, ConfigFile, Dataset, Engine, EvalDataset


def explain(
    example: Annotated[
        str,
        typer.Option(
            "--example",
            help="Id of the training row, or its beginning, from a report. Required.",
            metavar="ID",
        ),
    ],
    config: ConfigFile = None,
    dataset: Dataset = None,
    eval_dataset: EvalDataset = None,
    base_model: BaseModel = None,
    adapter: Adapter = None,
    item: Annotated[
        str | None,
        typer.Option(
            "--item",
            help="Id of the eval item to explain the row by. [default: the one that the row hurt most]",
            metavar="ID",
        ),
    ] = None,
    engine: Engine = None,
    tokens: Annotated[bool, typer.Option(help="Score and shade single tokens.")] = True,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Write the figures to this JSON file.", metavar="FILE"),
    ] = None,
) -> None:
    """Show which sentence of one training row did the damage.

    A wrong fact in a long row is a few tokens of its gradient. Each sentence is scored by itself, on one
    failing eval item, and printed most harmful first; then the answer with its tokens shaded.

    \b
    Example:
      gradian explain --example 3f2a9c1b7d04-17 --base-model meta-llama/Llama-3.2-1B-Instruct \\
        --adapter runs/my-finetune/adapter --dataset train.jsonl \\
        --eval-dataset capability_eval.jsonl
    """
    from rich.console import Console

    from gradian.cli.progress import terminal_progress
    from gradian.config import load_config
    from gradian.report.explanation import render_explanation

    settings = load_config(
        config,
        {
            "dataset": dataset,
            "eval_dataset": eval_dataset,
            "base_model": base_model,
            "adapter_path": adapter,
        },
    )
    from gradian.api import explain as explain_row

    explained = explain_row(
        settings, example=example, item=item, engine=engine, tokens=tokens, progress=terminal_progress()
    )
    Console().print(render_explanation(explained))
    if out is not None:
        from gradian.report import jsonfile
        from gradian.report.escape import visible_path
        from gradian.report.write import write_figures

        write_figures(jsonfile.render(explained), out)
        typer.echo(f"figures: {visible_path(out)}")
