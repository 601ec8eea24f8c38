"""Reads a report back from its JSON."""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import ValidationError

from gradian.errors import ConfigError
from gradian.jsonvalue import parse_json
from gradian.plainfile import read_plain
from gradian.report.model import SCHEMA_VERSION, Report

REPORT_FILE = "report.json"
MAX_REPORT_BYTES = 1 << 30
"""A row takes some 200 bytes."""


def read_report(path: str | Path) -> Report:
    """Return the report in a file, or in the `report.json` of a folder.

    Raises:
        ConfigError: there is none, or it is of another kind or version.
    """
    given = Path(os.path.expanduser(path))
    file = given / REPORT_FILE if os.path.isdir(given) else given
    fix = "give the `report.json` that `gradian attribute --out` wrote"
    try:
        data = parse_json(read_plain(file, MAX_REPORT_BYTES))
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or "no JSON"
        raise ConfigError("the report cannot be read", where=str(file), found=reason, fix=fix) from None
    version = data.get("schema_version") if isinstance(data, dict) else None
    if version != SCHEMA_VERSION:
        raise ConfigError(
            "the report has another format",
            where=str(file),
            found=f"schema_version {version!r}"[:80],
            expected=str(SCHEMA_VERSION),
            fix=fix,
        )
    try:
        return Report.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise ConfigError(
            "the report is not whole, or another version of Gradian wrote it",
            where=str(file),
            found=f"{'.'.join(map(str, first['loc']))}: {first['msg']}",
            fix="run `gradian attribute` again",
        ) from None
