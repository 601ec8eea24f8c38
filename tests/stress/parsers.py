"""Every parser of bytes that nobody vouches for, as a function that fails only by the errors it promises.

    python -m tests.stress.parsers manifest some-file ...      runs one on files

Each takes any bytes. It returns when they were read, or refused by the error of that parser; whatever else it
raises is a fault. `tests.stress.fuzz_parsers` looks for such bytes, and a test replays those that it found.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gradian.config.load import load_config
from gradian.data.formats import load_dataset
from gradian.data.jsontext import iter_document, iter_lines, layout_of, read_value, sniff
from gradian.errors import AdapterError, ConfigError, DataError, RunError, StoreError
from gradian.report.read import read_report
from gradian.runs.gradian_run import GradianRun, read_run
from gradian.runs.read import read_run_folder
from gradian.runs.training_args_bin import RefusedPickle, read_training_args
from gradian.store.format import Layout, checksum_bytes
from gradian.store.manifest import Manifest, journal_line
from gradian.store.writer import read_journal
from gradian.types import BlockSpec
from tests.store.building import memory_folder

CORPUS = Path(__file__).parent / "corpus"
RUNS = Path(__file__).parents[1] / "fixtures" / "runs"

LAYOUT = Layout("bd0488843468e63c62bb", (BlockSpec("a", ((2,),), 0),), 5, "float16", 2)
ADAPTER = json.dumps({"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"]})
# What a run folder may hold; the first byte says which of them the others are.
RUN_FILES = (
    "trainer_state.json",
    "training_args.bin",
    "adapter_config.json",
    "adapter_model.safetensors",
    "gradian_run.json",
    "README.md",
    "config.yaml",
    "trainer_log.jsonl",
    "all_results.json",
    "tokenizer_config.json",
    "debug.log",
    "checkpoint-10/trainer_state.json",
)


@contextmanager
def _folder(files: Mapping[str, bytes]) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="gradian-parsers-", dir=memory_folder()))
    try:
        for name, data in files.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(data)
        yield folder
    finally:
        shutil.rmtree(folder)


def manifest(data: bytes) -> None:
    """A manifest under a right checksum, without its first brace and checksum."""
    text = b'{"checksum":"' + checksum_bytes(data).encode() + data
    try:
        read = Manifest.from_json(text)
    except StoreError:
        return
    assert read.to_json().encode() == text


def journal(data: bytes) -> None:
    """A journal: what is believed of it says what this index must hold."""
    for chunk, entry in read_journal(data, LAYOUT).items():
        rows = LAYOUT.rows(chunk)
        assert entry.file == LAYOUT.chunk_file(chunk)
        assert entry.rows == (rows.start, rows.stop)
        assert entry.bytes == LAYOUT.chunk_bytes(chunk)
        journal_line(entry, LAYOUT.index).decode("ascii")


def safetensors(data: bytes) -> None:
    """The weights of an adapter: by the header alone, for an audit, and by the library, for a model."""
    from gradian.model.adapter import read_adapter_tensors

    with _folder({"adapter_config.json": ADAPTER.encode(), "adapter_model.safetensors": data}) as folder:
        run = read_run_folder(folder)
        assert run.lora is not None
        refused = [entry.reason for entry in run.unread if entry.file == "adapter_model.safetensors"]
        try:
            tensors = read_adapter_tensors(folder)
        except AdapterError as error:
            # A dtype of a later version is no damage to an audit.
            known = "NaN" in error.problem or "unknown variant" in str(error.found)
            if not refused and not known:
                raise AssertionError("an audit believes what a model is not loaded from") from error
            return
        assert not refused, refused
        assert run.lora.n_parameters == sum(tensor.numel() for tensor in tensors.values())


def training_args(data: bytes) -> None:
    """A pickle of training arguments."""
    try:
        read_training_args(data)
    except RefusedPickle:
        return


def dataset(data: bytes) -> None:
    """A file of rows; each of them is read again from the place that it was found at."""
    with _folder({"rows": data}) as folder:
        path = folder / "rows"
        try:
            load_dataset(path)
        except DataError:
            return
        if sniff(path) == "lines":
            rows = list(iter_lines(path))
        else:
            rows = list(iter_document(path, layout_of(path, frozenset({"messages"}), None)))
        for row in rows:
            assert _same(read_value(path, row.start, row.length), row.value)


def run_folder(data: bytes) -> None:
    """One file of a run folder, beside an adapter."""
    name = RUN_FILES[data[0] % len(RUN_FILES)] if data else RUN_FILES[0]
    with _folder({"adapter_config.json": ADAPTER.encode(), name: data[1:]}) as folder:
        try:
            run = read_run_folder(folder)
        except RunError:
            return
        for row in run.train_log:
            assert row.loss is None or isinstance(row.loss, float)
        assert run.n_train_rows is None or isinstance(run.n_train_rows, int)


def run_record(data: bytes) -> None:
    """A `gradian_run.json`, as training goes on from it."""
    with _folder({"gradian_run.json": data}) as folder:
        try:
            record = read_run(folder)
        except RunError:
            return
        assert record is not None
        GradianRun.from_json(record.to_json())


def adapter_config(data: bytes) -> None:
    """An `adapter_config.json`, as a model is loaded by it."""
    from gradian.model.adapter import read_adapter_config

    with _folder({"adapter_config.json": data}) as folder:
        try:
            read_adapter_config(folder)
        except AdapterError:
            return


def report(data: bytes) -> None:
    """A verdict, read back."""
    with _folder({"report.json": data}) as folder:
        try:
            read_report(folder)
        except ConfigError:
            return


def config(data: bytes) -> None:
    """A config file."""
    with _folder({"gradian.yaml": data}) as folder:
        try:
            load_config(folder / "gradian.yaml")
        except ConfigError:
            return


def arrow(data: bytes) -> None:
    """A folder of `save_to_disk`: the first byte says which of its files the others are."""
    names = ("data.arrow", "state.json", "dataset_dict.json", "indices.arrow")
    state: dict[str, Any] = {"_data_files": [{"filename": "data.arrow"}]}
    name = names[data[0] % len(names)] if data else names[0]
    if name == "indices.arrow":
        state["_indices_files"] = [{"filename": "indices.arrow"}]
    files = {"data.arrow": _arrow_file(), "state.json": json.dumps(state).encode(), name: data[1:]}
    with _folder(files) as folder:
        try:
            load_dataset(folder)
        except DataError:
            return


def _arrow_file() -> bytes:
    import pyarrow as pa

    table = pa.table({"prompt": ["a", "b", "c"], "completion": ["d", "e", "f"]})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def _same(first: Any, second: Any) -> bool:
    if isinstance(first, float) and isinstance(second, float):
        return first == second or (math.isnan(first) and math.isnan(second))
    if isinstance(first, list) and isinstance(second, list):
        return len(first) == len(second) and all(map(_same, first, second))
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(_same(first[key], second[key]) for key in first)
    return type(first) is type(second) and bool(first == second)


PARSERS: Mapping[str, Callable[[bytes], None]] = {
    parser.__name__: parser
    for parser in (
        manifest,
        journal,
        safetensors,
        training_args,
        dataset,
        run_folder,
        run_record,
        adapter_config,
        report,
        config,
        arrow,
    )
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parser", choices=PARSERS)
    parser.add_argument("files", nargs="*", type=Path)
    options = parser.parse_args()
    for file in options.files or sorted((CORPUS / options.parser).iterdir()):
        print(file, file=sys.stderr)
        PARSERS[options.parser](file.read_bytes())


if __name__ == "__main__":
    main()
