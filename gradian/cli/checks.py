"""`gradian checks`."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from gradian.checks.registry import Check

WIDEST = 100


def checks(
    check: Annotated[
        str | None, typer.Argument(help="Id of one check, to read its documentation.", metavar="ID")
    ] = None,
) -> None:
    """List the checks of `gradian diagnose`, or explain one of them.

    The 41 published checks come first, a line each; those beyond them follow under a heading.

    \b
    Example:
      gradian checks config.overtraining
    """
    from gradian.checks.registry import all_checks

    entries = all_checks()
    lines = listing(entries) if check is None else explanation(_named(check))
    typer.echo("\n".join(lines))


def _named(name: str) -> Check:
    from gradian.checks.registry import CHECKS
    from gradian.errors import UnknownNameError

    try:
        return CHECKS[name]
    except UnknownNameError as error:
        # Here the known names would be a screenful.
        raise UnknownNameError(
            error.problem, found=error.found, expected="an id that `gradian checks` lists", fix=error.fix
        ) from None


def listing(entries: Sequence[Check]) -> Iterator[str]:
    """Yield a line a check: category, id, summary; the additions apart."""
    width = max(len(entry.id) for entry in entries)
    beyond = False
    for entry in entries:
        if entry.addition and not beyond:
            yield ""
            yield f"beyond the {sum(not entry.addition for entry in entries)}:"
            beyond = True
        yield f"{entry.category:<10}{entry.id:<{width}}  {entry.summary}"


def explanation(entry: Check) -> Iterator[str]:
    """Yield what one check detects, why it matters, what to do, and which inputs it needs."""
    width = min(shutil.get_terminal_size().columns, WIDEST)
    yield f"{entry.id}: {entry.summary}"
    needs = " and ".join(need.value for need in entry.needs) or "nothing"
    for heading, text in (*entry.documentation.items(), ("Needs", needs)):
        yield ""
        yield heading
        yield textwrap.fill(text, width, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)
