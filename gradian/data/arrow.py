"""Folders that Hugging Face `save_to_disk` wrote: memory-mapped Arrow files, a split or several of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from gradian.data.arrowfile import UnboundedArrow, check_bytes, read_table, refusal, row_bytes
from gradian.errors import DataFormatError, MissingExtraError
from gradian.jsonvalue import parse_json
from gradian.supported import SAFE_READERS, unsafe_reader

_BATCH_ROWS = 1000
# A row is a mapping of its own, and becomes an example.
_ROW_BYTES = 512
_MOST_SHOWN = 20
# They name files and columns.
_JSON_BYTES = 16 << 20


def split_folder(folder: Path, split: str | None) -> Path:
    """The folder of one dataset inside `folder`, which may hold a DatasetDict.

    Raises:
        DataFormatError: several splits and none named, an unknown split, or no save_to_disk folder at all.
    """
    if (folder / "dataset_dict.json").is_file():
        splits = _json(folder / "dataset_dict.json").get("splits", [])
        names = [str(name) for name in splits] if isinstance(splits, list) else []
        shown = ", ".join(names)
        if split is None:
            raise DataFormatError(
                f"the folder holds a DatasetDict with the splits {shown}",
                where=str(folder),
                fix=" or ".join(f"{folder}::{name}" for name in names),
            )
        # The name must be one that the file lists: it becomes part of a path.
        if split not in names or Path(split).name != split:
            raise DataFormatError(f"no split {split!r}", where=str(folder), found=shown)
        return folder / split
    if not (folder / "state.json").is_file():
        inside = sorted(
            path.name for path in folder.iterdir() if path.suffix in (".jsonl", ".json", ".parquet", ".arrow")
        )
        raise DataFormatError(
            "the folder was not written by save_to_disk (it has no state.json)",
            where=str(folder),
            found=", ".join(inside[:10]) or "no data files",
            expected="a save_to_disk folder, or the path of one .jsonl or .json file",
        )
    if split is not None:
        raise DataFormatError(
            f"the folder holds one dataset, so there is no split {split!r}", where=str(folder)
        )
    return folder


@dataclass(frozen=True, eq=False)
class ArrowRows:
    """The rows of one dataset, memory-mapped.

    Attributes:
        folder: where it lies.
        table: a pyarrow.Table.
        indices: row numbers into the table, in dataset order, as a pyarrow array; None when all rows in order.
        files: each file with the number of the table's rows up to its end.
        n_bytes: what all rows take when they are read, at least.
    """

    folder: Path
    table: Any
    indices: Any
    files: tuple[tuple[Path, int], ...]
    n_bytes: int

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return int(self.table.num_rows if self.indices is None else len(self.indices))

    def __iter__(self) -> Iterator[Any]:
        """The rows as Python values.

        Raises:
            DataFormatError: Python has no value for one, such as a date after the year 9999.
        """
        for start in range(0, self.n_rows, _BATCH_ROWS):
            yield from self._values(start, min(_BATCH_ROWS, self.n_rows - start))

    def row(self, position: int) -> Any:
        """One row as Python values; raises what iterating does."""
        return self._values(position, 1)[0]

    def _values(self, start: int, count: int) -> list[Any]:
        part: Any = None
        try:
            if self.indices is None:
                part = self.table.slice(start, count)
            elif count == 1:
                part = self.table.slice(self.indices[start].as_py(), 1)
            else:
                part = self.table.take(self.indices.slice(start, count))
            values: list[Any] = part.to_pylist()
            return values
        except _unreadable() as error:
            raise self._fault(start, part, error) from None

    def _fault(self, start: int, part: Any, error: BaseException) -> DataFormatError:
        for name, column in zip(part.column_names, part.columns, strict=True) if part is not None else ():
            faults = [
                (row, fault) for row in range(len(column)) if (fault := _fault_of(column.slice(row, 1)))
            ]
            if faults:
                row, fault = faults[0]
                rows = [start + row + 1 for row, _ in faults]
                shown = ", ".join(map(str, rows[:_MOST_SHOWN])) + (", ..." if len(rows) > _MOST_SHOWN else "")
                return DataFormatError(
                    f"row{'s' if len(rows) > 1 else ''} {shown}: column {name!r}: Python has no such value",
                    where=str(self._file(start + row)),
                    found=f"{str(column.type)[:80]}: {type(fault).__name__}: {str(fault)[:120]}",
                    fix="drop the column, or cast it to text or numbers, and save the dataset again",
                )
        return DataFormatError(
            f"row {start + 1} or one soon after it cannot be read ({type(error).__name__}: {str(error)[:120]})",
            where=str(self.folder),
        )

    def _file(self, position: int) -> Path:
        place = position if self.indices is None else self.indices[position].as_py()
        return next(path for path, end in self.files if place < end)


def _unreadable() -> tuple[type[BaseException], ...]:
    # What turning values into Python's raises: of an unknown time zone a LookupError, or an OSError of its file.
    import pyarrow as pa

    return (ArithmeticError, LookupError, MemoryError, OSError, TypeError, ValueError, pa.ArrowException)


def _fault_of(values: Any) -> BaseException | None:
    try:
        values.to_pylist()
    except _unreadable() as error:
        return error
    return None


def open_arrow(folder: Path) -> ArrowRows:
    """Opens a folder that has a `state.json`.

    Raises:
        MissingExtraError: pyarrow is not installed, or is one that runs what the file tells it to.
        DataFormatError: a file is missing or is not Arrow.
    """
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        raise MissingExtraError(
            "reading save_to_disk folders needs pyarrow",
            where=str(folder),
            fix="pip install 'gradian-ml[train]'",
        ) from None
    if unsafe := unsafe_reader("pyarrow"):
        raise MissingExtraError(
            f"{unsafe} runs pickles that an Arrow file holds, so the file is not read",
            where=str(folder),
            fix=f"pip install 'pyarrow>={SAFE_READERS['pyarrow']}'",
        )
    state = _json(folder / "state.json")
    data = _tables(_files(folder, state, "_data_files"))
    index = _tables(_files(folder, state, "_indices_data_files") or _files(folder, state, "_indices_files"))
    table = _joined(data)
    indices = _row_numbers(_joined(index), table.num_rows, next(iter(index))) if index else None
    ends = accumulate(part.num_rows for part in data.values())
    n_bytes = _checked_bytes(folder, table, indices, sum(path.stat().st_size for path in (*data, *index)))
    return ArrowRows(folder, table, indices, tuple(zip(data, ends, strict=True)), n_bytes)


def _checked_bytes(folder: Path, table: Any, indices: Any, file_bytes: int) -> int:
    try:
        weights = row_bytes(table)
        if indices is not None:
            weights = weights[indices.to_numpy()]
        check_bytes(float(weights.sum()), file_bytes)
    except UnboundedArrow as error:
        raise refusal(str(error), folder) from None
    return int(weights.sum()) + len(weights) * _ROW_BYTES


def _row_numbers(table: Any, n_rows: int, where: Path) -> Any:
    import pyarrow as pa
    import pyarrow.compute

    if table.num_columns != 1 or not pa.types.is_integer(table.schema.types[0]):
        raise DataFormatError("the indices are no column of whole numbers", where=str(where))
    indices = table.column(0).combine_chunks()
    if len(indices):
        bounds = pa.compute.min_max(indices).as_py()
        if indices.null_count or bounds["min"] < 0 or bounds["max"] >= n_rows:
            raise DataFormatError("the indices point past the last row", where=str(where))
    return indices


def _tables(paths: list[Path]) -> dict[Path, Any]:
    return {path: read_table(path) for path in paths}


def _joined(tables: Mapping[Path, Any]) -> Any:
    import pyarrow as pa

    try:
        return pa.concat_tables(tables.values())
    except pa.ArrowException as error:  # Other columns in one file than in the next.
        raise DataFormatError(
            f"the files do not make one table ({str(error)[:120]})", where=str(next(iter(tables)).parent)
        ) from None


def _files(folder: Path, state: dict[str, Any], key: str) -> list[Path]:
    entries = state.get(key) or []
    if not isinstance(entries, list):
        raise DataFormatError(f"{key} is no list", where=str(folder / "state.json"))
    paths: dict[Path, None] = {}
    for entry in entries:
        name = entry.get("filename") if isinstance(entry, dict) else None
        if not isinstance(name, str) or Path(name).name != name:
            raise DataFormatError(f"{key} holds no plain file name", where=str(folder / "state.json"))
        if folder / name in paths:
            raise DataFormatError(f"{key} names {name!r} twice", where=str(folder / "state.json"))
        paths[folder / name] = None
    if not paths and key == "_data_files":
        raise DataFormatError("state.json names no data files", where=str(folder))
    return list(paths)


def _json(path: Path) -> dict[str, Any]:
    try:
        if path.exists() and not path.is_file():
            raise ValueError("not a plain file")
        if path.stat().st_size > _JSON_BYTES:
            raise ValueError(f"{path.stat().st_size} bytes; at most {_JSON_BYTES} are read")
        value = parse_json(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        raise DataFormatError(f"cannot be read ({error})", where=str(path)) from None
    if not isinstance(value, dict):
        raise DataFormatError("not a JSON object", where=str(path))
    return value
