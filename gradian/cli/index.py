"""`gradian index`."""

from __future__ import annotations

from typing import Annotated

import typer

from gradian.cli.options import Adapter, BaseModel, ConfigFile, Dataset, SkipNonfinite


def index(
    config: ConfigFile = None,
    dataset: Dataset = None,
    base_model: BaseModel = None,
    adapter: Adapter = None,
    force: Annotated[bool, typer.Option("--force", help="Rebuild even if a cached index exists.")] = False,
    skip_nonfinite: SkipNonfinite = False,
) -> None:
    """Build the per-example gradient index and print where it lies.

    The index is cached under an id made of everything that changes its numbers, so `attribute` finds
    it again. How it is built (batch size, sequence length, modules, number format) is set in the
    config's `grads` section. A base model, an adapter and a dataset are required, from flags or the
    config.

    \b
    Example:
      gradian index --base-model meta-llama/Llama-3.2-1B-Instruct \\
        --adapter runs/my-finetune/adapter --dataset train.jsonl
    """
    from gradian.cli.progress import terminal_progress
    from gradian.config import load_config

    settings = load_config(config, {"dataset": dataset, "base_model": base_model, "adapter_path": adapter})
    from gradian.api import build_index_for
    from gradian.report.escape import visible_path

    reader = build_index_for(
        settings, force=force, skip_nonfinite=skip_nonfinite, progress=terminal_progress()
    )
    typer.echo(visible_path(reader.path))
