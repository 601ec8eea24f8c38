"""A report as JSON: RFC 8259, stable key order, one list entry a line so that it can be searched and compared.

Characters that cannot be seen, and `<`, are written as escapes: the file does nothing to a terminal that shows it
or to a page that embeds it.
"""

from __future__ import annotations

import json
import re
from typing import Any

from pydantic import BaseModel

from gradian.report.escape import is_visible

# All of these stand inside strings: outside them, JSON is ASCII.
_SPECIAL = re.compile(r"[^ -;=-~]")


def render(report: BaseModel) -> str:
    """Return a report as JSON text. No NaN and no infinity: the model has made them null."""
    members = [f"{_dump(key)}: {_value(value)}" for key, value in report.model_dump(mode="json").items()]
    return "{\n  " + ",\n  ".join(members) + "\n}\n"


def _value(value: Any) -> str:
    if isinstance(value, list) and value:
        return "[\n    " + ",\n    ".join(_dump(entry) for entry in value) + "\n  ]"
    if isinstance(value, dict) and value:
        members = [f"{_dump(key)}: {_dump(entry)}" for key, entry in value.items()]
        return "{\n    " + ",\n    ".join(members) + "\n  }"
    return _dump(value)


def _dump(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    return text if text.isascii() and text.isprintable() and "<" not in text else _SPECIAL.sub(_written, text)


def _written(match: re.Match[str]) -> str:
    char = match.group()
    return char if char != "<" and is_visible(char) else _units(char)


def _units(char: str) -> str:
    # Twice for a character beyond the first plane, as JSON wants it.
    units = char.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))
