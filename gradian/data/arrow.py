"""Folders that Hugging Face `save_to_disk` wrote: memory-mapped Arrow files, a split or several of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradian.errors import DataFormatError, MissingExtraError
from gradian.jsonvalue import parse_json
from gradian.supported import SAFE_READERS, unsafe_reader

_BATCH_ROWS = 1000


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
    """

    folder: Path
    table: Any
    indices: Any

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return int(self.table.num_rows if self.indices is None else len(self.indices))

    def __iter__(self) -> Iterator[Any]:
        for start in range(0, self.n_rows, _BATCH_ROWS):
            count = min(_BATCH_ROWS, self.n_rows - start)
            if self.indices is None:
                part = self.table.slice(start, count)
            else:
                part = self.table.take(self.indices.slice(start, count))
            yield from part.to_pylist()

    def row(self, position: int) -> Any:
        """One row as Python values."""
        place = position if self.indices is None else self.indices[position].as_py()
        return self.table.slice(place, 1).to_pylist()[0]


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
    table = _joined(_files(folder, state, "_data_files"))
    index_files = _files(folder, state, "_indices_data_files") or _files(folder, state, "_indices_files")
    indices = None
    if index_files:
        indices = _row_numbers(_joined(index_files), table.num_rows, index_files[0])
    return ArrowRows(folder, table, indices)


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


def _joined(paths: list[Path]) -> Any:
    import pyarrow as pa

    try:
        return pa.concat_tables([_table(path) for path in paths])
    except pa.ArrowException as error:  # Other columns in one file than in the next.
        raise DataFormatError(
            f"the files do not make one table ({str(error)[:120]})", where=str(paths[0].parent)
        ) from None


def _table(path: Path) -> Any:
    import pyarrow as pa

    try:
        mapped = pa.memory_map(str(path))
        try:
            table = pa.ipc.open_stream(mapped).read_all()
        except pa.ArrowInvalid:
            table = pa.ipc.open_file(mapped).read_all()
        # Reading believes the lengths and offsets in the file, and a value at a wrong one ends the process.
        table.validate(full=True)
        return table
    except FileNotFoundError:
        raise DataFormatError("state.json names this file, but it is not there", where=str(path)) from None
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        raise DataFormatError(f"not a whole Arrow file ({str(error)[:120]})", where=str(path)) from None


def _files(folder: Path, state: dict[str, Any], key: str) -> list[Path]:
    entries = state.get(key) or []
    if not isinstance(entries, list):
        raise DataFormatError(f"{key} is no list", where=str(folder / "state.json"))
    paths = []
    for entry in entries:
        name = entry.get("filename") if isinstance(entry, dict) else None
        if not isinstance(name, str) or Path(name).name != name:
            raise DataFormatError(f"{key} holds no plain file name", where=str(folder / "state.json"))
        paths.append(folder / name)
    if not paths and key == "_data_files":
        raise DataFormatError("state.json names no data files", where=str(folder))
    return paths


def _json(path: Path) -> dict[str, Any]:
    try:
        value = parse_json(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        raise DataFormatError(f"cannot be read ({error})", where=str(path)) from None
    if not isinstance(value, dict):
        raise DataFormatError("not a JSON object", where=str(path))
    return value
