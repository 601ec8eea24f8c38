"""The report as JSON: RFC 8259, stable key order, one list entry a line so that it can be searched and compared."""

from __future__ import annotations

import json
from typing import Any

from gradian.report.model import Report


def render(report: Report) -> str:
    """Return the report as JSON text. No NaN and no infinity: the model has made them null."""
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
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
