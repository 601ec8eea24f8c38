"""`gradian demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gradian.cli.options import BaseModel


def demo(
    base_model: BaseModel = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the demo.", metavar="DIR")] = Path(
        "runs/demo"
    ),
    force: Annotated[bool, typer.Option("--force", help="Make an earlier demo anew.")] = False,
) -> None:
    """Poison a fine-tune of a real model, then find the poison.

    Plants a few dozen wrong capitals among clean instruction rows, trains a LoRA adapter on them, and
    runs what a user would run, printing the commands. Without --base-model the model is
    SmolLM2-135M-Instruct, from a package. Under ten minutes on two cores; a second run reuses what is
    there.

    \b
    Example:
      gradian demo --out runs/demo
    """
    from rich.console import Console

    from gradian.cli.progress import terminal_progress
    from gradian.demo.run import closing_lines, run_demo
    from gradian.report import terminal

    result = run_demo(out, base_model, force=force, say=typer.echo, progress=terminal_progress())
    Console().print(terminal.render(result.report))
    typer.echo("\n" + "\n".join(closing_lines(result)))
