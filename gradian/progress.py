"""How long work reports how far it is and what an interruption would keep, without knowing who shows it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

Advance = Callable[[int], None]
"""Called with the number of items done since the last call, not with the running total."""


class Progress(Protocol):
    """Something that can show the progress of tasks; tasks may nest."""

    def task(self, title: str, total: int) -> AbstractContextManager[Advance]:
        """Begin a task of `total` items, ended when the context closes; the value advances it."""
        ...

    def keep(self, what: str, state: Callable[[], str], *, forced: bool = False) -> None:
        """Note what is kept if the work is interrupted from here on.

        Args:
            what: the thing that is made; a later note on it takes the place of this one.
            state: says in a sentence how much of it there is, when it is asked, on whatever thread.
            forced: it is being made anew, as was asked. To ask for that again would throw away what is kept.
        """
        ...


def _ignore(_: int) -> None:
    return None


class NullProgress:
    """Shows nothing: the default wherever a progress is optional."""

    def task(self, title: str, total: int) -> AbstractContextManager[Advance]:
        """Return a context whose value does nothing."""
        return nullcontext(_ignore)

    def keep(self, what: str, state: Callable[[], str], *, forced: bool = False) -> None:
        """Do nothing."""
