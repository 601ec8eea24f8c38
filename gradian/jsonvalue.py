"""JSON text to plain values, whatever the text says: what is not read is a ValueError, in bounded time and memory.

Python's own parser answers deep nesting with a RecursionError, and what it does let through may be too deep for
whoever walks it next.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn

MAX_DEPTH = 100
"""Lists and objects inside one another; no row, setting or record comes near."""
MAX_MARKS = 6_000_000
"""Brackets, commas and colons of a text. A log of 400,000 steps has 5 million."""
_STRICT_MARKS = 1_000_000
_STRICT_DIGITS = 40
_OPENING = "[{"
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_MARKS = "[{,:"


def parse_json(text: str | bytes) -> Any:
    """Return the value of a JSON text. NaN and infinities are read as numbers; of a key given twice the last counts.

    Raises:
        ValueError: not JSON, not UTF-8, a number of thousands of digits, or too many or too deeply nested values.
    """
    if _count(text, _MARKS) > MAX_MARKS:
        raise ValueError("it has too many values")
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    check_depth(value, text)
    return value


def parse_strict_json(data: bytes, encoding: str = "utf-8") -> Any:
    """Return the value of a JSON text that a machine wrote, and refuse what could be read in two ways.

    Raises:
        ValueError: as `parse_json`, or a key given twice, NaN or infinity, a number of over 40 characters or half a
            surrogate pair.
    """
    if _count(data, _MARKS) > _STRICT_MARKS:
        raise ValueError("it has too many values")
    try:
        value = json.loads(
            data.decode(encoding),
            object_pairs_hook=_unique,
            parse_int=_parse_int,
            parse_float=_parse_float,
            parse_constant=_no_constant,
        )
    except RecursionError:
        raise ValueError("nested too deeply") from None
    check_depth(value, data)
    if _SURROGATE.search(data):
        # Half a pair is no character, and nothing could write it again.
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    return value


def check_depth(value: Any, text: str | bytes) -> None:
    """Raise ValueError where lists and objects lie deeper in one another than `MAX_DEPTH`.

    Args:
        value: what a JSON text says.
        text: that text. Few have enough brackets to be looked at more closely.
    """
    if len(text) <= MAX_DEPTH or _count(text, _OPENING) <= MAX_DEPTH:
        return
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return
    raise ValueError("nested too deeply")


def _count(text: str | bytes, marks: str) -> int:
    if isinstance(text, str):
        return sum(text.count(mark) for mark in marks)
    return sum(text.count(mark.encode()) for mark in marks)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        raise ValueError("it has a key twice")
    return values


def _parse_int(text: str) -> int:
    if len(text) > _STRICT_DIGITS:
        raise ValueError("it has a number that is too long")
    return int(text)


def _parse_float(text: str) -> float:
    if len(text) > _STRICT_DIGITS or not math.isfinite(value := float(text)):
        raise ValueError("it has a number that is too long or not finite")
    return value


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")
