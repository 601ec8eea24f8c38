"""The bank on disk: what it was made from, and one line for each retraining.

    bank.json      everything that decides a loss, with the ids of what was measured; written first, then only compared
    runs.jsonl     {"name", "seed", "kept": n bits, "losses": float32 per measured row}, both as base64

A line is written in one piece and flushed, so a kill loses the retraining that was running and nothing else. Of a
line that was cut off no newline is left, and the next run removes it.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gradian.errors import GradianError
from gradian.store.durable import append_line, create_or_read, make_folder, replace_file
from gradian.types import BoolArray

HEADER, RUNS = "bank.json", "runs.jsonl"
MOST_BYTES = 64 << 20
"""Of a file of records; a bank of 160 retrainings has a tenth of a mebibyte of them."""
SCHEMA_VERSION = 1
Losses = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Record:
    """One retraining.

    Attributes:
        name: as the plan has it.
        seed: of its initialisation and order.
        kept: bool [n]; the rows it was trained on.
        losses: float32 [measured]; nats a token.
    """

    name: str
    seed: int
    kept: BoolArray
    losses: Losses

    def to_line(self) -> bytes:
        """Return its line, newline included."""
        fields = {
            "name": self.name,
            "seed": self.seed,
            "kept": _text(np.packbits(self.kept).tobytes()),
            "losses": _text(self.losses.astype("<f4").tobytes()),
        }
        return (json.dumps(fields) + "\n").encode("ascii")

    @classmethod
    def from_line(cls, line: bytes, n: int, n_measured: int) -> Record:
        """Return the record behind a line.

        Raises:
            ValueError, KeyError: it is not one of n rows and n_measured losses.
        """
        fields = json.loads(line)
        bits = np.frombuffer(base64.b64decode(fields["kept"], validate=True), dtype=np.uint8)
        losses = np.frombuffer(base64.b64decode(fields["losses"], validate=True), dtype="<f4")
        if len(bits) != (n + 7) // 8 or len(losses) != n_measured:
            raise ValueError(f"{8 * len(bits)} rows and {len(losses)} losses")
        kept = np.unpackbits(bits, count=n).astype(np.bool_)
        return cls(fields["name"], fields["seed"], kept, losses.astype(np.float32))


class Bank:
    """The retrainings that are done.

    Attributes:
        folder: where they lie.
        inputs: everything that decides a loss; JSON values.
        n: training rows.
        measured: ids of the measured rows.
        records: by name, in the order in which they were made.
    """

    def __init__(self, folder: Path, inputs: Mapping[str, Any], n: int, measured: tuple[str, ...]) -> None:
        self.folder = folder
        self.inputs = inputs
        self.n = n
        self.measured = measured
        self.records: dict[str, Record] = {}

    def add(self, record: Record) -> None:
        """Write a finished retraining."""
        append_line(self.folder / RUNS, record.to_line())
        self.records[record.name] = record

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records.values())


def open_bank(
    folder: Path, inputs: Mapping[str, Any], n: int, measured: tuple[str, ...], made_with: Mapping[str, str]
) -> Bank:
    """Open a bank to add to it, or begin one.

    Args:
        folder: of the bank.
        inputs: everything that decides a loss.
        n: training rows.
        measured: ids of the measured rows.
        made_with: versions of libraries, noted when a bank begins and never compared.

    Raises:
        GradianError: it was made from other inputs, or is damaged.
    """
    make_folder(folder)
    path = folder / HEADER
    if path.exists():
        there = _header(path)
        differing = [
            key for key in sorted({*there["inputs"], *inputs}) if there["inputs"].get(key) != inputs.get(key)
        ]
        if differing:
            raise GradianError(
                "the bank was made from something else",
                where=str(path),
                found=f"other {', '.join(differing)}",
                fix="give another folder, or remove this one to make it anew",
            )
    else:
        header = {
            "schema_version": SCHEMA_VERSION,
            "n": n,
            "inputs": dict(inputs),
            "made_with": dict(made_with),
            "measured": list(measured),
        }
        replace_file(path, (json.dumps(header, indent=1) + "\n").encode("ascii"))
    whole, _, cut_off = create_or_read(folder / RUNS, MOST_BYTES).rpartition(b"\n")
    if cut_off:
        replace_file(folder / RUNS, whole + b"\n" if whole else b"")
    return read_bank(folder)


def read_bank(folder: Path) -> Bank:
    """Open a bank to read it.

    Raises:
        GradianError: there is none, or it is damaged.
    """
    header = _header(folder / HEADER)
    bank = Bank(folder, header["inputs"], header["n"], tuple(header["measured"]))
    path = folder / RUNS
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise GradianError("the bank cannot be read", where=str(path), found=str(error)) from None
    for number, line in enumerate(lines, start=1):
        try:
            record = Record.from_line(line, bank.n, len(bank.measured))
        except (ValueError, KeyError, TypeError) as error:
            raise GradianError(
                "a line of the bank is damaged",
                where=f"{path}:{number}",
                found=str(error),
                fix="remove the line",
            ) from None
        bank.records[record.name] = record
    return bank


def _header(path: Path) -> dict[str, Any]:
    try:
        header = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise GradianError("the bank cannot be read", where=str(path), found=str(error)) from None
    if not isinstance(header, dict) or header.get("schema_version") != SCHEMA_VERSION:
        raise GradianError("this is no bank of a known version", where=str(path))
    return header


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
