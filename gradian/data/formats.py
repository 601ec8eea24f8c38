"""Dataset files and folders: one `Dataset` of examples, with what there is to say about its rows."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, overload

from gradian.data.arrow import open_arrow, split_folder
from gradian.data.ids import row_hash
from gradian.data.jsontext import (
    Located,
    has_bom,
    iter_document,
    iter_lines,
    layout_of,
    read_value,
    sniff,
)
from gradian.data.rows import MESSAGE_KEYS, PAIR_SHAPES, ParsedRow, RemarkKind, read_row
from gradian.errors import DataError, DataFormatError
from gradian.types import Example, Finding, Severity

IN_MEMORY_BYTES = 32 * 1024 * 1024
"""Files up to this size become a tuple of examples; larger ones are read again row by row as needed."""

ROW_KEYS = frozenset({*MESSAGE_KEYS, *(key for _, keys in PAIR_SHAPES for key in keys), "text"})
"""Keys that make a JSON object a row itself rather than a wrapper of rows."""
_MAX_LISTED = 10_000

_FINDINGS: Mapping[RemarkKind, tuple[str, Severity, str, str]] = {
    RemarkKind.UNREADABLE: (
        "data.unreadable_rows",
        Severity.HIGH,
        "Rows that cannot be used and take no part",
        "Correct or remove these rows.",
    ),
    RemarkKind.UNKNOWN_SHAPE: (
        "data.unknown_row_shape",
        Severity.MEDIUM,
        "Rows that match no known shape, taken as raw text",
        "Rename the keys to one of the documented shapes, or remove the rows.",
    ),
    RemarkKind.NO_TARGET: (
        "data.row_without_target",
        Severity.MEDIUM,
        "Rows without a target to learn from",
        "Fill in the missing answers, or remove the rows.",
    ),
    RemarkKind.UNKNOWN_ROLE: (
        "data.unknown_role",
        Severity.MEDIUM,
        "Rows with a role that chat templates do not know",
        "Use system, user, assistant and tool (or human and gpt).",
    ),
    RemarkKind.NULL_WORD: (
        "data.null_like_text",
        Severity.LOW,
        "Rows whose text is a bare word such as 'None' or 'nan'",
        "If it stands for a missing value, make it null.",
    ),
    RemarkKind.CONVERTED: (
        "data.value_converted",
        Severity.LOW,
        "Rows with numbers or objects where text belongs",
        "Write these values as text, so that every trainer reads them alike.",
    ),
}


@dataclass(frozen=True, eq=False)
class Dataset:
    """The rows of a dataset in order: `examples[i].position == i`.

    Attributes:
        path: the file or folder.
        examples: one example a row, unusable rows included (they have a `problem`). A tuple, or for a large
            file a sequence that reads each row from the file when it is asked for.
        notes: what was done to read the file, one sentence each.
        findings: what there is to say about rows.
        shapes: how many rows have each shape.
    """

    path: Path
    examples: Sequence[Example]
    notes: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    shapes: Mapping[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.examples)

    def __iter__(self) -> Iterator[Example]:
        return iter(self.examples)


class FileExamples(Sequence[Example]):
    """Examples that stay in their file: 22 bytes of memory a row.

    A row that reads differently from when the file was loaded raises DataFormatError.
    """

    def __init__(self, path: Path, read: Callable[[int, int], Any]) -> None:
        self._path = path
        self._read = read
        self._starts = array("q")
        self._lengths = array("q")
        self._hashes = bytearray()

    def append(self, located: Located, hash_hex: str) -> None:
        """Adds the next row."""
        self._starts.append(located.start)
        self._lengths.append(located.length)
        self._hashes += bytes.fromhex(hash_hex)

    def __len__(self) -> int:
        return len(self._starts)

    @overload
    def __getitem__(self, index: int) -> Example: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Example]: ...
    def __getitem__(self, index: int | slice) -> Example | Sequence[Example]:
        if isinstance(index, slice):
            return tuple(self[i] for i in range(*index.indices(len(self))))
        position = index + len(self) if index < 0 else index
        if not 0 <= position < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        row = self._read(self._starts[position], self._lengths[position])
        hash_hex = self._hashes[6 * position : 6 * position + 6].hex()
        if row_hash(row) != hash_hex:
            raise DataFormatError(
                f"row {position + 1} changed since the file was loaded",
                where=str(self._path),
                fix="run again, and leave the file alone meanwhile",
            )
        return read_row(row, position, f"{hash_hex}-{position}").example


@dataclass
class _Tally:
    # What the rows had remarks for, in bounded memory.
    counts: Counter[RemarkKind] = field(default_factory=Counter)
    ids: dict[RemarkKind, list[str]] = field(default_factory=dict)
    rows: dict[RemarkKind, list[int]] = field(default_factory=dict)
    details: dict[RemarkKind, list[str]] = field(default_factory=dict)
    shapes: Counter[str] = field(default_factory=Counter)

    def add(self, parsed: ParsedRow) -> None:
        self.shapes[parsed.example.shape] += 1
        number = parsed.example.position + 1
        for remark in parsed.remarks:
            kind = remark.kind
            details = self.details.setdefault(kind, [])
            if len(details) < 20:
                details.append(f"row {number}: {remark.detail}")
            rows = self.rows.setdefault(kind, [])
            if rows and rows[-1] == number:
                continue
            self.counts[kind] += 1
            if len(rows) < _MAX_LISTED:
                rows.append(number)
                self.ids.setdefault(kind, []).append(parsed.example.id)

    def findings(self) -> Iterator[Finding]:
        for kind, (identifier, severity, what, fix) in _FINDINGS.items():
            count = self.counts[kind]
            if not count:
                continue
            details = self.details[kind]
            figures: dict[str, Any] = {"count": count, "rows": self.rows[kind]}
            if kind is RemarkKind.UNKNOWN_SHAPE:
                figures["shapes"] = dict(self.shapes)
            yield Finding(
                identifier,
                severity,
                f"{what}: {count} of {self.shapes.total()}",
                "; ".join(details) + ("; ..." if count > len(details) else "") + ".",
                fix,
                tuple(self.ids[kind]),
                figures,
            )


@dataclass(frozen=True)
class _Source:
    rows: Iterator[Located]
    read: Callable[[int, int], Any]
    n_bytes: int
    notes: tuple[str, ...]


def load_dataset(path: str | Path) -> Dataset:
    """Reads a .jsonl file, a .json file or a `save_to_disk` folder.

    Args:
        path: the file or folder. `folder::split` picks a split of a DatasetDict, `file.json::key` the list of
            rows in a JSON object that holds several.

    Raises:
        DataError: the path does not exist.
        DataFormatError: the file cannot be read; one error names every bad line, up to 20.
        MissingExtraError: a save_to_disk folder, and pyarrow is not installed.
    """
    target, part = split_path(path)
    if not _exists(target):
        raise DataError(
            "no such file or folder",
            where=str(target),
            fix="give a local .jsonl or .json file or a save_to_disk folder; Hub dataset ids are not resolved",
        )
    if not (target.is_file() or target.is_dir()):
        raise DataError(
            "neither a file nor a folder",
            where=str(target),
            fix="write the rows to a file first: a pipe can be read only once, and rows are read again",
        )
    source = _arrow_source(target, part) if target.is_dir() else _json_source(target, part)
    in_memory = source.n_bytes <= IN_MEMORY_BYTES
    kept: list[Example] = []
    in_file = FileExamples(target, source.read)
    tally = _Tally()
    for position, located in enumerate(source.rows):
        hash_hex = row_hash(located.value)
        parsed = read_row(located.value, position, f"{hash_hex}-{position}")
        tally.add(parsed)
        if in_memory:
            kept.append(parsed.example)
        else:
            in_file.append(located, hash_hex)
    if not tally.shapes:
        raise DataFormatError(
            "there are no rows",
            where=str(target),
            found="an empty list",
            expected="one row or more",
            fix="give the file that was trained on; an export that failed may look like this",
        )
    notes = source.notes
    if len(tally.shapes) > 1:
        listed = ", ".join(f"{shape} {count}" for shape, count in tally.shapes.most_common())
        notes = (*notes, f"Row shapes: {listed}.")
    return Dataset(
        target, tuple(kept) if in_memory else in_file, notes, tuple(tally.findings()), dict(tally.shapes)
    )


def split_path(path: str | Path) -> tuple[Path, str | None]:
    """Return the file or folder, and the split or key after `::`, of what `load_dataset` takes."""
    text = str(path)
    if "::" in text and not _exists(Path(text)):
        head, _, part = text.rpartition("::")
        if head and part:
            return Path(head), part
    return Path(text), None


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # A name that is too long, or that holds a NUL.
        return False


def _arrow_source(folder: Path, split: str | None) -> _Source:
    chosen = split_folder(folder, split)
    rows = open_arrow(chosen)
    located = (Located(row, place, 1) for place, row in enumerate(rows))
    return _Source(
        located,
        lambda start, length: rows.row(start),
        rows.n_bytes,
        (f"Read the split {split!r}.",) if split else (),
    )


def _json_source(path: Path, key: str | None) -> _Source:
    notes = ["The file begins with a UTF-8 byte order mark, which was passed over."] if has_bom(path) else []
    if sniff(path) == "lines":
        if key is not None:
            raise DataFormatError(f"the file holds lines, so there is no part {key!r}", where=str(path))
        rows = iter_lines(path)
        if path.suffix.lower() == ".json":
            notes.append("The file is named .json but holds one JSON value a line.")
    else:
        layout = layout_of(path, ROW_KEYS, key)
        rows = iter_document(path, layout)
        if layout.kind == "wrapped":
            notes.append(f"Rows were read from the list under {layout.key!r}.")
        elif layout.kind == "array" and path.suffix.lower() == ".jsonl":
            notes.append("The file is named .jsonl but holds one JSON array.")
    return _Source(
        rows, lambda start, length: read_value(path, start, length), path.stat().st_size, tuple(notes)
    )
