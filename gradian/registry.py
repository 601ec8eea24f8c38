"""Named extension points: one function plus a decorator."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from difflib import get_close_matches
from typing import Generic, TypeVar

from gradian.errors import UnknownNameError

T = TypeVar("T")


class Registry(Generic[T]):
    """Objects under unique names, in the order of registration.

    Args:
        kind: what the entries are, in the singular ("engine"), for messages.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._entries: dict[str, T] = {}

    def register(self, name: str) -> Callable[[T], T]:
        """Return a decorator that files its object under `name`; a second use of a name raises ValueError."""

        def decorate(entry: T) -> T:
            if name in self._entries:
                raise ValueError(f"{self.kind} {name!r} is registered twice")
            self._entries[name] = entry
            return entry

        return decorate

    def __getitem__(self, name: str) -> T:
        """Return the entry called `name`; raise UnknownNameError listing the known names."""
        if name in self._entries:
            return self._entries[name]
        close = get_close_matches(name, self._entries, n=1)
        raise UnknownNameError(
            f"there is no {self.kind} of that name",
            found=repr(name),
            expected=f"one of {', '.join(self._entries) or '(none registered)'}",
            fix=f"did you mean {close[0]!r}?" if close else None,
        )

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def items(self) -> Iterator[tuple[str, T]]:
        """Iterate over (name, entry) in the order of registration."""
        return iter(tuple(self._entries.items()))
