"""Settings and logged numbers as trainers write them, to plain typed values."""

from __future__ import annotations

import math
import re
from typing import Any

# 0.5, 2e-4 (text under YAML 1.1), nan, -inf; a tensor is logged as `tensor(0.5)` or `tensor(0.5, device='cuda:0')`.
_NUMBER = re.compile(
    r"\s*(?:tensor\(\s*)?\[?(?P<number>[-+]?(?:nan|inf(?:inity)?|(?:\d[\d_]*\.?\d*|\.\d+)(?:e[-+]?\d+)?))\]?"
    r"(?:\s*,[^)]{0,80})?\)?\s*",
    re.IGNORECASE,
)
_LONGEST_NUMBER = 120
# No setting is a book; patterns are searched for in these.
_LONGEST_TEXT = 16_384
# No trainer counts further, and what is computed from such numbers stays within a float.
_LARGEST_INT = 2.0**63
_WORDS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


def as_float(value: Any) -> float | None:
    """Return a number, also from its text; NaN and infinities stay. None for anything else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        try:
            return float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf
    if isinstance(value, str) and len(value) <= _LONGEST_NUMBER:
        match = _NUMBER.fullmatch(value)
        return float(match["number"].replace("_", "")) if match else None
    return None


def as_int(value: Any) -> int | None:
    """Return a whole number of at most 64 bits, also from `3.0` or its text; None for anything else."""
    number = as_float(value)
    if number is None or not abs(number) < _LARGEST_INT or number != int(number):
        return None
    return value if isinstance(value, int) else int(number)


def as_finite(value: Any) -> float | None:
    """Return a number as `as_float` does, but none that is NaN or infinite: no setting is."""
    number = as_float(value)
    return number if number is not None and math.isfinite(number) else None


def as_count(value: Any) -> int | None:
    """Return a whole number of at least one; None for anything else."""
    number = as_int(value)
    return number if number is not None and number > 0 else None


def as_bool(value: Any) -> bool | None:
    """Return a truth value, also from `0`, `1` or its YAML words; None for anything else."""
    if isinstance(value, bool):
        return value
    if isinstance(value, int) and value in (0, 1):
        return bool(value)
    return _WORDS.get(value.strip().lower()) if isinstance(value, str) else None


def as_text(value: Any) -> str | None:
    """Return non-empty text of at most 16384 characters; None for anything else."""
    return value if isinstance(value, str) and 0 < len(value) <= _LONGEST_TEXT else None


def as_bool_or_text(value: Any) -> bool | str | None:
    """Return a truth value, or the text of one that is neither (`bf16: auto`)."""
    known = as_bool(value)
    return as_text(value) if known is None else known
