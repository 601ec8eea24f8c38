"""Content hashes of rows: an id names what a row says and where it stands, on every machine alike."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

from gradian.types import Example

HASH_CHARS = 12


def canonical_json(value: Any) -> str:
    """The one JSON text of a value: keys sorted, no spaces, no ASCII escapes, NaN and infinities as null.

    Values that JSON does not have (dates or bytes of an Arrow file) are written as their `str`.
    """
    try:
        return _dumps(value)
    except ValueError:
        # Rare, and costs a walk over the value: only when the fast path met a NaN.
        return _dumps(_without_nan(value))


def row_hash(row: Any) -> str:
    """The first 12 hex digits of the SHA-256 of the row's canonical JSON."""
    return hashlib.sha256(canonical_json(row).encode("utf-8")).hexdigest()[:HASH_CHARS]


def example_id(row: Mapping[str, Any], position: int) -> str:
    """`sha256(canonical row)[:12]-position`, with `position` counted from 0."""
    return f"{row_hash(row)}-{position}"


def dataset_hash(examples: Iterable[Example]) -> str:
    """SHA-256 over the ids in order: changes with any row's content, with a row more or less, and with the order."""
    digest = hashlib.sha256()
    for example in examples:
        digest.update(example.id.encode("ascii"))
        digest.update(b"\n")
    return digest.hexdigest()


def _dumps(value: Any) -> str:
    return json.dumps(
        value, sort_keys=True, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=str
    )


def _without_nan(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(item) for item in value]
    return value
