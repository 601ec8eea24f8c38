"""`gradian init-config`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gradian.errors import ConfigError


def init_config(
    out: Annotated[Path, typer.Option("--out", "-o", help="Where to write the config.")] = Path(
        "gradian.yaml"
    ),
    base_model: Annotated[
        str, typer.Option("--base-model", "-m", help="Model id or path to fill in.", show_default=False)
    ] = "",
) -> None:
    """Write a starter config file with every setting, its default and what it does.

    An existing file is never overwritten.

    \b
    Example:
      gradian init-config --base-model meta-llama/Llama-3.2-1B-Instruct
    """
    from gradian.config.starter import starter_yaml
    from gradian.report.escape import visible_path
    from gradian.store.durable import create_file

    text = starter_yaml(base_model)
    try:
        create_file(out, text.encode("utf-8"))
    except FileExistsError:
        raise ConfigError(
            "the file is there already and is left as it is",
            where=str(out),
            fix="name another file with --out, or move this one away",
        ) from None
    except OSError as error:
        raise ConfigError("the config file cannot be written", where=str(out), found=str(error)) from None
    typer.echo(f"wrote {visible_path(out)}")
