"""Regular expressions over module names, matched in time that grows with the name's length and no faster.

An adapter's configuration comes from anywhere, and Python's own matcher may take for ever over what it holds. Here all
ways through an expression are followed at once, so there is none to go back to.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

# One token each. What is not listed (back references, looking around, possessive or named groups) is not understood.
_TOKEN = re.compile(
    r"(?P<open>\((?:\?:)?(?!\?))|(?P<close>\))|(?P<bar>\|)"
    r"|(?P<repeat>(?:[*+?]|\{\d{1,3}(?:,\d{0,3})?\})\??(?![+*?]))"
    r"|(?P<border>\\b|\^|\$)"
    r"|(?P<one>\[\^?\]?(?:\\[dwsDWS\W_]|[^\]\\\[&|~])*\]|\\[dwsDWS\W_]|[^\\\[\](){}*+?|^$])"
)
_MOST_STATES = 2_000
_MOST_REMEMBERED = 10_000
_DEEPEST = 30


class _NotUnderstood(Exception):
    pass


@dataclass
class _State:
    """One step: a character that `one` takes, or a border, or none, and then each of `then`."""

    one: re.Pattern[str] | None = None
    border: str = ""
    then: list[int] = field(default_factory=list)


class NamePattern:
    """A regular expression that names are matched against, whole."""

    def __init__(self, states: list[_State], start: int, end: int) -> None:
        self._states = states
        self._start = start
        self._end = end
        # What was reached is reached again for most names of a model.
        self._next: dict[tuple[frozenset[int], str, str], frozenset[int]] = {}

    def fullmatch(self, name: str) -> bool:
        """Whether the expression matches all of `name`."""
        at = self._reached([self._start], "", name[:1])
        for place, char in enumerate(name):
            following = name[place + 1 : place + 2]
            if (at, char, following) not in self._next:
                if len(self._next) >= _MOST_REMEMBERED:
                    self._next.clear()
                taken = [then for state in at for then in self._taken(state, char)]
                self._next[at, char, following] = self._reached(taken, char, following)
            at = self._next[at, char, following]
            if not at:
                return False
        return self._end in at

    def _taken(self, state: int, char: str) -> list[int]:
        one = self._states[state].one
        return self._states[state].then if one is not None and one.fullmatch(char) else []

    def _reached(self, states: list[int], before: str, after: str) -> frozenset[int]:
        found: set[int] = set()
        left = list(states)
        while left:
            number = left.pop()
            state = self._states[number]
            if number in found or (state.border and not _is_border(state.border, before, after)):
                continue
            found.add(number)
            if state.one is None:
                left += state.then
        return frozenset(found)


def _is_border(border: str, before: str, after: str) -> bool:
    if border == "^":
        return not before
    if border == "$":
        return not after
    return _in_word(before) != _in_word(after)


def _in_word(char: str) -> bool:
    return char.isalnum() or char == "_"


def name_pattern(text: str) -> NamePattern | None:
    """Return the expression, or None where it holds what is not understood here or is very large.

    Args:
        text: a regular expression that Python's own parser takes.
    """
    try:
        tokens = list(_tokens(text))
        builder = _Builder(tokens)
        first, last = builder.either(0)
        if builder.place < len(tokens):
            return None
    except _NotUnderstood:
        return None
    return NamePattern(builder.states, first, last)


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    place = 0
    while place < len(text):
        token = _TOKEN.match(text, place)
        if token is None or token.lastgroup is None:
            raise _NotUnderstood
        yield token.lastgroup, token.group()
        place = token.end()


class _Builder:
    """Tokens to states; each part of the expression is a first and a last state."""

    def __init__(self, tokens: list[tuple[str, str]]) -> None:
        self.tokens = tokens
        self.place = 0
        self.states: list[_State] = []

    def either(self, depth: int) -> tuple[int, int]:
        """Read alternatives up to a closing bracket or the end."""
        if depth > _DEEPEST:
            raise _NotUnderstood
        first, last = self._state(), self._state()
        while True:
            inner = self._sequence(depth)
            self.states[first].then.append(inner[0])
            self.states[inner[1]].then.append(last)
            if self._kind() != "bar":
                return first, last
            self.place += 1

    def _sequence(self, depth: int) -> tuple[int, int]:
        first = last = self._state()
        while self._kind() in ("open", "one", "border"):
            before = self.place
            item = self._item(depth)
            if self._kind() == "repeat":
                item = self._repeated(item, before, depth)
            self.states[last].then.append(item[0])
            last = item[1]
        if self._kind() == "repeat":
            raise _NotUnderstood
        return first, last

    def _item(self, depth: int) -> tuple[int, int]:
        kind, text = self.tokens[self.place]
        self.place += 1
        if kind == "open":
            inner = self.either(depth + 1)
            if self._kind() != "close":
                raise _NotUnderstood
            self.place += 1
            return inner
        last = self._state()
        state = _State(border=text) if kind == "border" else _State(one=re.compile(text))
        state.then.append(last)
        return self._state(state), last

    def _repeated(self, item: tuple[int, int], before: int, depth: int) -> tuple[int, int]:
        least, most = _counts(self.tokens[self.place][1])
        behind = self.place + 1
        first = last = self._state()
        for copy in range(max(least, 1) if most is None else most):
            if copy:  # Read anew, for states of its own.
                self.place = before
                item = self._item(depth)
            after = self._state()
            self.states[last].then.append(item[0])
            self.states[item[1]].then.append(after)
            if copy >= least:
                self.states[last].then.append(after)
            if most is None and copy + 1 >= least:
                self.states[item[1]].then.append(item[0])
            last = after
        self.place = behind
        return first, last

    def _kind(self) -> str:
        return self.tokens[self.place][0] if self.place < len(self.tokens) else ""

    def _state(self, state: _State | None = None) -> int:
        if len(self.states) >= _MOST_STATES:
            raise _NotUnderstood
        self.states.append(state or _State())
        return len(self.states) - 1


def _counts(repeat: str) -> tuple[int, int | None]:
    """The least and the most of a repetition; None for no most."""
    plain = {"*": (0, None), "+": (1, None), "?": (0, 1)}
    if repeat[0] in plain:
        return plain[repeat[0]]
    low, comma, high = repeat.rstrip("?").strip("{}").partition(",")
    return int(low), (int(high) if high else None) if comma else int(low)
