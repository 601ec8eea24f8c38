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
from gradian.store.durable import PartialFile, make_folder, replace_file


def check_writable(folder: str | os.PathLike[str]) -> None:
    """Create `folder` and try a file of a byte in it, so that hours of work do not end in a report without a place.

    Raises:
        ConfigError: the folder cannot be written.
    """
    target = Path(folder)
    try:
        make_folder(target)
        PartialFile(target / "report.json", 1).discard()
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


def write_figures(text: str, path: Path) -> None:
    """Write a JSON text to a file of the user's choice, creating its folder.

    Raises:
        ConfigError: it cannot be written.
    """
    try:
        make_folder(path.parent)
        replace_file(path, text.encode("utf-8"))
    except OSError as error:
        raise _unwritable(path, error) from error


def _write(folder: str | os.PathLike[str], contents: Mapping[str, str]) -> list[Path]:
    target = Path(folder)
    try:
        make_folder(target)
        for name, text in contents.items():
            replace_file(target / name, text.encode("utf-8"))
        return [target / name for name in contents]
    except OSError as error:
        raise _unwritable(target, error) from error


def _unwritable(target: Path, error: OSError) -> ConfigError:
    is_file = isinstance(error, FileExistsError | NotADirectoryError)
    return ConfigError(
        "the report cannot be written",
        where=str(target),
        found="a file where a folder must be" if is_file else error.strerror or str(error),
        fix=f"{'remove it' if is_file else 'free space'}, or choose another place with --out",
    )
