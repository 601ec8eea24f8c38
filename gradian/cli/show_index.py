"""`gradian show-index`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer


def show_index(
    path: Annotated[Path, typer.Argument(help="Index folder.", metavar="PATH")],
    verify: Annotated[
        bool, typer.Option("--verify", help="Read every byte and compare it with its checksum.")
    ] = False,
) -> None:
    """Print an index's manifest as JSON: everything its numbers were made from.

    \b
    Example:
      gradian show-index .gradian/index/0123456789abcdef0123
    """
    from gradian.report.escape import ascii_json
    from gradian.store.reader import IndexReader

    reader = IndexReader.open(path, verify="checksums" if verify else "headers")
    # The file is one canonical line; people read and diff this.
    typer.echo(ascii_json(json.loads(reader.manifest.to_json())))
