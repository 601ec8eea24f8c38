"""Files that nobody vouches for are read, or refused by the error that is promised, at a bounded cost."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from safetensors import safe_open

from gradian.config.yamltext import YamlError, parse_yaml
from gradian.data.formats import load_dataset
from gradian.data.jsontext import Layout, iter_document
from gradian.errors import AdapterError, DataError, DataFormatError
from gradian.jsonvalue import MAX_DEPTH, parse_json, parse_strict_json
from gradian.model.adapter import read_adapter_config, read_adapter_tensors
from gradian.runs.read import read_run_folder
from gradian.store.manifest import MAX_MANIFEST_BYTES
from tests.stress import documents, manifests
from tests.stress.parsers import CORPUS, PARSERS, RUN_FILES

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", PARSERS)
def test_what_fuzzing_found_or_reached_is_read_or_refused_as_promised(name: str) -> None:
    files = sorted((CORPUS / name).iterdir())
    assert files
    for file in files:
        PARSERS[name](file.read_bytes())


def test_texts_made_to_exhaust_cost_a_second_and_256_mb_at_most() -> None:
    # A process of its own: it forks, and what other tests left in memory would count.
    done = subprocess.run(
        [sys.executable, "-m", "tests.stress.documents", "--every", "41"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["inputs"] > 30


def test_manifests_of_any_kind_are_refused_or_read_as_exactly_what_they_say() -> None:
    found = manifests.run(120)
    assert found["refused"] > 100


@pytest.mark.parametrize("line", [b"\n", b"{}\n"])
def test_a_journal_of_more_lines_than_a_build_writes_costs_no_time(line: bytes) -> None:
    start = time.process_time()
    PARSERS["journal"](line * (MAX_MANIFEST_BYTES // len(line)))
    assert time.process_time() - start < documents.MOST_SECONDS


@pytest.mark.parametrize("line", [b"\n", b"{\n"])
def test_a_log_of_lines_that_say_nothing_costs_no_time(line: bytes) -> None:
    start = time.process_time()
    PARSERS["run_folder"](bytes([RUN_FILES.index("trainer_log.jsonl")]) + line * 500_000)
    assert time.process_time() - start < documents.MOST_SECONDS


def test_short_rows_behind_a_long_one_cost_no_more_than_by_themselves(tmp_path: Path) -> None:
    # Each was copied with all that had been read ahead for the long one.
    path = tmp_path / "rows.json"
    path.write_text('["' + "x" * 9_000_000 + '"' + ",[1]" * 20_000 + ',"' + "x" * 7_000_000 + '"]')
    start = time.process_time()
    assert sum(1 for _ in iter_document(path, Layout("array"))) == 20_002
    assert time.process_time() - start < 3


# What the safetensors library takes, and an audit may.
WHOLE = {"a shape with a zero and a huge one", "names by the thousand", "a name that no pattern ends on"}
LATER = {"an unknown dtype"}


@pytest.mark.parametrize("name", documents.HEADERS)
def test_a_header_is_refused_by_an_audit_and_by_a_model_or_taken_by_both(tmp_path: Path, name: str) -> None:
    data = documents.HEADERS[name]
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"]}
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    (tmp_path / "adapter_model.safetensors").write_bytes(data)
    unread = [entry.file for entry in read_run_folder(tmp_path).unread]
    assert unread == ([] if name in WHOLE | LATER else ["adapter_model.safetensors"])
    if name in WHOLE:
        with safe_open(tmp_path / "adapter_model.safetensors", "pt") as file:
            assert set(read_adapter_tensors(tmp_path)) == set(file.keys())
    else:
        with pytest.raises(AdapterError, match=r"adapter_model\.safetensors"):
            read_adapter_tensors(tmp_path)


DEEP = '{"a":' * 3_000 + "1" + "}" * 3_000


def _config(folder: Path) -> None:
    (folder / "adapter_config.json").write_text(DEEP)
    read_adapter_config(folder)


def _splits(folder: Path) -> None:
    (folder / "dataset_dict.json").write_text(DEEP)
    load_dataset(folder)


def _rows(folder: Path) -> None:
    (folder / "rows.jsonl").write_text(f"{DEEP}\n")
    load_dataset(folder / "rows.jsonl")


def _deep_nan(folder: Path) -> None:
    # Deep enough for whoever walks the value, not for Python's parser.
    (folder / "rows.jsonl").write_text('{"a":' * 600 + "NaN" + "}" * 600 + "\n")
    load_dataset(folder / "rows.jsonl")


@pytest.mark.parametrize(
    ("read", "error"),
    [(_config, AdapterError), (_splits, DataFormatError), (_rows, DataError), (_deep_nan, DataError)],
)
def test_nesting_is_refused_before_it_overruns_a_stack(
    tmp_path: Path, read: Callable[[Path], None], error: type[Exception]
) -> None:
    with pytest.raises(error, match="nested too deeply"):
        read(tmp_path)


def test_tools_that_nest_too_deeply_are_no_tools(tmp_path: Path) -> None:
    row = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
    (tmp_path / "rows.jsonl").write_text(json.dumps({**row, "tools": DEEP}) + "\n")
    (example,) = load_dataset(tmp_path / "rows.jsonl").examples
    assert example.tools is None


def test_json_may_nest_to_the_limit_and_no_further() -> None:
    for read in (parse_json, parse_strict_json):
        assert read(b"[" * MAX_DEPTH + b"]" * MAX_DEPTH)
        with pytest.raises(ValueError, match="too deeply"):
            read(b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1))
    # Brackets inside of text are text.
    assert parse_json(json.dumps({"a": "[" * 1_000})) == {"a": "[" * 1_000}


def test_strict_json_holds_no_half_of_a_surrogate_pair() -> None:
    assert parse_strict_json(b'"\\ud83d\\ude00"') == "\N{GRINNING FACE}"
    with pytest.raises(ValueError, match="surrogates"):
        parse_strict_json(b'["\\ud83d"]')


def test_yaml_that_takes_its_parser_seconds_is_refused_at_once() -> None:
    for text in ("[" * 7_000, "a: [" + "1," * 100_000 + "]", "a: " + "x " * 200_000, "? " * 50 + "a"):
        with pytest.raises(YamlError):
            parse_yaml(text)


def _calls(name: str) -> Iterator[str]:
    for path in sorted((ROOT / "gradian").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == name:
                yield str(path.relative_to(ROOT / "gradian"))


def test_json_that_someone_else_may_have_written_is_read_in_one_place() -> None:
    assert set(_calls("json.loads")) == {
        "jsonvalue.py",
        # Their own text, or a library's, made a moment before.
        "cli/show_index.py",
        "data/chat.py",
        "demo/dataset.py",
        "demo/files.py",
        "model/backends/trainer.py",
    }


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("more columns", "one table"),
        ("text", "whole numbers"),
        ("below zero", "past the last row"),
        ("nothing", "past the last row"),
        ("cut", "not a whole Arrow file"),
        ("offsets", "not a whole Arrow file"),
        ("no list", "no list"),
    ],
)
def test_a_damaged_folder_of_save_to_disk_is_an_error_and_never_a_crash(
    tmp_path: Path, name: str, says: str
) -> None:
    import pyarrow as pa

    def write(file: str, table: pa.Table) -> None:
        with pa.OSFile(str(tmp_path / file), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)

    rows = pa.table({"prompt": ["aaaa", "bbbb"], "completion": ["cccc", "dddd"]})
    state: dict[str, object] = {"_data_files": [{"filename": "data.arrow"}]}
    write("data.arrow", rows)
    indices = {"text": ["0"], "below zero": [-1], "nothing": [None]}
    if name in indices:
        write(
            "indices.arrow",
            pa.table({"indices": pa.array(indices[name], None if name == "text" else pa.int64())}),
        )
        state["_indices_files"] = [{"filename": "indices.arrow"}]
    elif name == "more columns":
        write("more.arrow", pa.table({"prompt": ["a"], "completion": ["b"], "more": [1]}))
        state["_data_files"] = [{"filename": "data.arrow"}, {"filename": "more.arrow"}]
    elif name == "no list":
        state["_data_files"] = 1
    else:
        data = bytearray((tmp_path / "data.arrow").read_bytes())
        if name == "cut":
            del data[len(data) // 2 :]
        else:
            # The second offset of the first column, so that its text reaches far behind the file.
            at = data.index(b"\x04\x00\x00\x00\x08\x00\x00\x00")
            data[at : at + 8] = b"\xff\xff\xff\x7f\xff\xff\xff\x7f"
        (tmp_path / "data.arrow").write_bytes(data)
    (tmp_path / "state.json").write_text(json.dumps(state))
    with pytest.raises(DataFormatError, match=says):
        load_dataset(tmp_path)
