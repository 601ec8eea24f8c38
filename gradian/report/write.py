"""Writes a report's files, each whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from gradian.errors import ConfigError
from gradian.report import jsonfile, markdown
from gradian.report.audit.markdown import render as audit_markdown
from gradian.report.audit.model import AuditReport
from gradian.report.model import Report
from gradian.report.verification.markdown import render as verification_markdown
from gradian.report.verification.model import Verification


def check_writable(folder: str | os.PathLike[str]) -> None:
    """Create `folder` and try a file in it, so that hours of work do not end in a report without a place.

    Raises:
        ConfigError: the folder cannot be written.
    """
    target = Path(folder)
    try:
        target.mkdir(parents=True, exist_ok=True)
        _replace(target / "writable", "")
        (target / "writable").unlink()
    except OSError as error:
        raise _unwritable(target, error) from None


def write_report(report: Report, folder: str | os.PathLike[str]) -> list[Path]:
    """Write `report.json` and `report.md` into `folder`, creating it, and return their paths.

    Raises:
        ConfigError: the folder cannot be written.
    """
    return _write(folder, {"report.json": jsonfile.render(report), "report.md": markdown.render(report)})


def write_audit(report: AuditReport, folder: str | os.PathLike[str]) -> list[Path]:
    """Write `audit.json` and `audit.md` into `folder`, creating it, and return their paths.

    Raises:
        ConfigError: the folder cannot be written.
    """
    return _write(folder, {"audit.json": jsonfile.render(report), "audit.md": audit_markdown(report)})


def write_verification(verification: Verification, folder: str | os.PathLike[str]) -> list[Path]:
    """Write `verify.json` and `verify.md` into `folder`, creating it, and return their paths.

    Raises:
        ConfigError: the folder cannot be written.
    """
    return _write(
        folder,
        {"verify.json": jsonfile.render(verification), "verify.md": verification_markdown(verification)},
    )


def _write(folder: str | os.PathLike[str], contents: Mapping[str, str]) -> list[Path]:
    # A reader never sees half a file: each is written beside its place and renamed.
    target = Path(folder)
    try:
        target.mkdir(parents=True, exist_ok=True)
        return [_replace(target / name, text) for name, text in contents.items()]
    except OSError as error:
        raise _unwritable(target, error) from error


def _unwritable(target: Path, error: OSError) -> ConfigError:
    return ConfigError(
        "the report cannot be written",
        where=str(target),
        found=error.strerror or str(error),
        fix="choose another folder with --out",
    )


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
