"""Writes a report's files, each whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from gradian.errors import ConfigError
from gradian.report import jsonfile, markdown
from gradian.report.model import Report


def write_report(report: Report, folder: str | os.PathLike[str]) -> list[Path]:
    """Write `report.json` and `report.md` into `folder`, creating it, and return their paths.

    A reader never sees half a file: each is written beside its place and renamed. Raises ConfigError
    when the folder cannot be written.
    """
    target = Path(folder)
    contents = {"report.json": jsonfile.render(report), "report.md": markdown.render(report)}
    try:
        target.mkdir(parents=True, exist_ok=True)
        return [_replace(target / name, text) for name, text in contents.items()]
    except OSError as error:
        raise ConfigError(
            "the report cannot be written",
            where=str(target),
            found=error.strerror or str(error),
            fix="choose another folder with --out",
        ) from error


def _replace(path: Path, text: str) -> Path:
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with open(partial, "w", encoding="utf-8", newline="\n") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    return path
