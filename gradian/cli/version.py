"""`gradian version`."""

from __future__ import annotations

import typer

from gradian import __version__


def version() -> None:
    """Print the installed version.

    \b
    Example:
      gradian version
    """
    typer.echo(__version__)
