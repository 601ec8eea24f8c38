"""A dataset file without some of its rows: what stays is copied byte for byte, and read back before it counts."""

from __future__ import annotations

import codecs
import json
import os
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gradian.data.arrow import open_arrow, split_folder
from gradian.data.formats import ROW_KEYS, load_dataset, split_path
from gradian.data.jsontext import Located, has_bom, iter_document, iter_lines, layout_of, sniff
from gradian.errors import DataError, DataFormatError
from gradian.store.durable import flush, sync_folder, temporary_path
from gradian.types import Example

_COPY_BYTES = 1 << 22


@dataclass(frozen=True)
class Subset:
    """Rows of a dataset in a file of their own.

    Attributes:
        path: the file.
        source: what `load_dataset` takes to read it: the path, with the key of the list where it holds several.
        n: rows in it.
    """

    path: Path
    source: str
    n: int


def check_target(source: str | Path, target: Path) -> None:
    """Refuse a place for a subset of `source` before any work is put into it; creates its folder.

    Raises:
        DataError: it is the source itself or lies inside it, is a folder, or cannot be written.
    """
    path, _ = split_path(source)
    fix = "choose another file: the rows that training saw are never overwritten"
    if _same(path, target):
        raise DataError("the rows that stay would overwrite the dataset", where=str(target), fix=fix)
    if path.is_dir() and path.resolve() in target.resolve().parents:
        raise DataError("the rows that stay would lie inside the dataset", where=str(target), fix=fix)
    if target.is_dir():
        raise DataError("the rows that stay go into a file, and this is a folder", where=str(target))
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        probe = temporary_path(target)
        probe.touch(exist_ok=False)
        probe.unlink()
    except OSError as error:
        raise _unwritable(target, error) from None


def write_subset(source: str | Path, target: Path, drop: Collection[int]) -> Subset:
    """Write a dataset without some of its rows; `target` appears whole or not at all.

    Lines stay as they are, with the byte order mark, blank lines and line ends between them; of a JSON document
    everything outside the rows stays too. The rows of a `save_to_disk` folder become lines. Before it takes its
    name the file is read back and compared with the rows that were to stay.

    Args:
        source: what `load_dataset` takes.
        target: the file to write; an old one is replaced.
        drop: 0-based rows to leave out.

    Raises:
        IndexError: there is no such row.
        DataError: `check_target`, or no row would stay.
        DataFormatError: the source cannot be read, or what is left of it reads as something else.
    """
    check_target(source, target)
    examples = load_dataset(source).examples
    gone = frozenset(drop)
    if not gone <= set(range(len(examples))):
        raise IndexError(f"rows {min(gone)} to {max(gone)} of {len(examples)}")
    kept = [row for row in range(len(examples)) if row not in gone]
    if not kept:
        raise DataError(
            "no row would stay", where=str(source), found=f"{len(examples)} rows, all to be dropped"
        )
    path, part = split_path(source)
    key = part if path.is_file() else None
    partial = temporary_path(target)
    try:
        with partial.open("xb") as file:
            for piece in _arrow_lines(path, part, gone) if path.is_dir() else _without(path, part, gone):
                file.write(piece)
            file.flush()
            flush(file.fileno())
        _read_back(_named(partial, key), source, (examples[row] for row in kept), len(kept))
        os.replace(partial, target)
        sync_folder(target.parent)
    except OSError as error:
        raise _unwritable(target, error) from None
    finally:
        partial.unlink(missing_ok=True)
    return Subset(target, _named(target, key), len(kept))


def _without(path: Path, key: str | None, gone: frozenset[int]) -> Iterator[bytes]:
    ranges = _line_ranges(path, gone) if sniff(path) == "lines" else _document_ranges(path, key, gone)
    with path.open("rb") as file:
        for start, end in ranges:
            file.seek(start)
            while start < end and (block := file.read(min(_COPY_BYTES, end - start))):
                yield block
                start += len(block)


def _line_ranges(path: Path, gone: frozenset[int]) -> Iterator[tuple[int, int]]:
    # Everything but the dropped lines. The mark belongs to the file, not to its first row.
    begin = 0
    mark = len(codecs.BOM_UTF8) if has_bom(path) else 0
    for row, line in enumerate(iter_lines(path)):
        if row in gone:
            yield begin, max(line.start, mark)
            begin = line.start + line.length
    yield begin, path.stat().st_size


def _document_ranges(path: Path, key: str | None, gone: frozenset[int]) -> Iterator[tuple[int, int]]:
    # What precedes the first row and follows the last, and each kept row with the comma and space before it, which
    # the first of them does without.
    end: int | None = None
    first = True
    for row, element in enumerate(iter_document(path, layout_of(path, ROW_KEYS, key))):
        before = 0 if end is None else end
        if end is None:
            yield 0, element.start
        if row not in gone:
            yield (element.start if first else before), _end(element)
            first = False
        end = _end(element)
    yield end or 0, path.stat().st_size


def _end(element: Located) -> int:
    return element.start + element.length


def _arrow_lines(folder: Path, split: str | None, gone: frozenset[int]) -> Iterator[bytes]:
    for row, value in enumerate(open_arrow(split_folder(folder, split))):
        if row not in gone:
            text = json.dumps(_finite(value), ensure_ascii=False, allow_nan=False, default=str)
            yield f"{text}\n".encode()


def _finite(value: Any) -> Any:
    # JSON has no word for NaN, which stands for a missing value here.
    if isinstance(value, float) and value - value != 0:
        return None
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def _read_back(written: str, source: str | Path, kept: Iterable[Example], n: int) -> None:
    try:
        found = load_dataset(written).examples
        same = len(found) == n and all(_content(a) == _content(b) for a, b in zip(found, kept, strict=True))
    except DataFormatError:
        same = False
    if not same:
        raise DataFormatError(
            "without these rows the file would read as something else, so it was not written",
            where=str(source),
            expected="rows that JSON can hold, in a file of lines or in one list",
            fix="convert the dataset to one JSON object a line, and train and attribute on that",
        )


def _content(example: Example) -> Example:
    return replace(example, id=example.id.rpartition("-")[0], position=0)


def _named(path: Path, key: str | None) -> str:
    return str(path) if key is None else f"{path}::{key}"


def _same(path: Path, target: Path) -> bool:
    try:
        return os.path.samefile(path, target)
    except (OSError, ValueError):
        return False


def _unwritable(target: Path, error: OSError) -> DataError:
    return DataError(
        "the rows that stay cannot be written",
        where=str(target),
        found=error.strerror or str(error),
        fix="choose another file",
    )
