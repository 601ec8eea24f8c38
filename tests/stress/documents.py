"""Texts made to exhaust, to be read in two ways or to lead elsewhere, and what reading each of them costs.

    python -m tests.stress.documents

Every reader of a file that nobody vouches for gets every text, each in a process of its own whose memory may grow
by 256 MB. It must answer by the error that it promises, or read the text, within a second of computing.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

from tests.stress.arrows import MAKERS
from tests.stress.parsers import PARSERS, RUN_FILES
from tests.stress.pickles import NESTED as NESTED_PICKLES
from tests.stress.pickles import PICKLES

MOST_SECONDS = 1.0
MOST_BYTES = 256 << 20
MEBIBYTE = 1 << 20

NESTED = {
    f"{name} {depth} deep": opening * depth + inside + closing * depth
    for depth in (90, 300, 900, 5_000, 500_000)
    for name, opening, inside, closing in (
        ("lists", "[", "", "]"),
        ("objects", '{"a":', "NaN", "}"),
        ("open lists", "[", "", ""),
        ("both", '[{"a":', "1", "}]"),
    )
}
LONG = {
    "a number of 4,000 digits": "9" * 4_000,
    "a number of a million digits": "9" * MEBIBYTE,
    "an exponent of a million digits": "1e" + "9" * MEBIBYTE,
    "a fraction of a million digits": "0." + "1" * MEBIBYTE,
    "a text of a mebibyte": '"' + "x" * MEBIBYTE + '"',
    "a text of a mebibyte of escapes": '"' + "\\u0001" * (MEBIBYTE // 6) + '"',
    "a text without an end": '"' + "\\" * MEBIBYTE,
    "many lists": "[" + "[]," * (MEBIBYTE // 3) + "1]",
    "many objects": "[" + "{}," * (MEBIBYTE // 3) + "1]",
    "many numbers": "[" + "1," * (MEBIBYTE // 2) + "1]",
    "many keys": "{" + ",".join(f'"{i}":1' for i in range(80_000)) + "}",
    "keys with one hash": "{" + ",".join(f'"{i * (2**61 - 1)}":1' for i in range(30_000)) + "}",
    "one key many times": "{" + '"a":1,' * (MEBIBYTE // 6) + '"a":1}',
    "spaces": " " * MEBIBYTE,
    "lines": "\n" * MEBIBYTE,
    "commas": "," * MEBIBYTE,
}
ODD = {
    "nothing": "",
    "NaN": '{"a":NaN}',
    "infinity": '{"a":-Infinity}',
    "a huge exponent": '{"a":1e999999}',
    "a key twice": '{"a":1,"a":2}',
    "half a surrogate pair": '{"\\ud800":"\\udfff"}',
    "a NUL": '{"a\\u0000":"\\u0000"}',
    "a bare NUL": '{"a":"\0"}',
    "a path out of the folder": '{"filename":"../../../../etc/passwd","chunks":[{"file":"/etc/passwd"}]}',
    "a byte order mark": '\ufeff{"a":1}',
    "two values": "{}{}",
    "a list": "[]",
    "null": "null",
    "true": "true",
    "an unknown escape": '{"a":"\\x"}',
    "a single quote": "{'a':1}",
}
# Shapes at which an expression that goes back and forth takes the square of their length.
LINES = {
    "front matter without an end": "---" + "\n" * MEBIBYTE,
    "front matter with many ends that are none": "---\n" + "\n--- x" * 40_000,
    "a version behind many spaces": "- PEFT" + " " * MEBIBYTE + "x",
    "versions without an end": "- PEFT :" * (MEBIBYTE // 8),
    "fences without an end": "axolotl\n" + "```yaml\n" * 40_000,
    "a config announced many times": "config:" * (MEBIBYTE // 7),
    "a sum of sixtieths": "seed: " + "1:" * 201 + "1.5",
    "a whole number of sixtieths": "seed: " + "1:" * 3_900 + "1",
    "a whole number that no text holds": "seed: 0x" + "F" * 200_000,
    "a number that is none": "seed: 0x_",
    "a tag": 'seed: !!int ""',
    "a tag in front matter": "---\nbase_model: !!bool x\n---\n",
    "a long tag": "seed: !" + "x" * 200_000,
    "an escape of no character": 'base_model: "\\UFFFFFFFF"',
    "a control character": "seed: \x1b",
    "a date in month 13": "seed: 2024-13-45",
}
SETTINGS = {
    f"{key} {str(value)[:30]}": json.dumps({"peft_type": "LORA", key: value})
    for key, value in (
        ("target_modules", "(.|.|.)*zz"),
        ("target_modules", "("),
        ("target_modules", "(" * 16_000),
        ("target_modules", [1, None]),
        ("exclude_modules", "(.|.|.)*zz"),
        ("modules_to_save", ["(.|.|.)*zz"]),
        ("rank_pattern", {"(.|.|.)*zz": 4}),
        ("rank_pattern", {"((((.{0,99}){0,99}){0,99}){0,99}){0,99}": 4}),
        ("rank_pattern", {f"(a{number}|b)": 4 for number in range(1_000)}),
        ("alpha_pattern", {"(": 4}),
        ("lora_alpha", "x"),
        ("r", 10**8),
        ("layer_replication", [[0, 10**9]]),
    )
}
BINARY = {
    "UTF-16": '{"a":1}'.encode("utf-16"),
    "UTF-32": '{"a":1}'.encode("utf-32"),
    "Latin 1": b'{"a":"\xe9"}',
    "an overlong NUL": b'{"a":"\xc0\x80"}',
    "a surrogate in UTF-8": b'{"a":"\xed\xa0\x80"}',
    "zeros": bytes(MEBIBYTE),
    "ones": b"\xff" * MEBIBYTE,
}
DOCUMENTS: Mapping[str, bytes] = {
    **{name: text.encode() for name, text in {**NESTED, **LONG, **ODD, **LINES, **SETTINGS}.items()},
    **BINARY,
}

# Hundreds of thousands of rows or fields are no attack, and this parser reads its file twice.
ROWS = {
    ("dataset", name)
    for name in ("many lists", "many objects", "many numbers", "many keys", "one key many times")
}

GOOD = save(
    {
        "base_model.model.m.q_proj.lora_A.weight": np.ones((2, 3), np.float32),
        "base_model.model.m.q_proj.lora_B.weight": np.zeros((3, 2), np.float32),
    }
)


def weights(header: Any, data: int = 48, size: int | None = None) -> bytes:
    """A safetensors file of any header: JSON values or the text itself."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if size is None else size).to_bytes(8, "little") + text + bytes(data)


def _tensor(shape: Any = (2, 6), offsets: Any = (0, 48), dtype: Any = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


HEADERS: Mapping[str, bytes] = {
    "no header": b"",
    "seven bytes": bytes(7),
    "a header of 2**63 bytes": weights({}, size=2**63),
    "a header of 2**64 - 1 bytes": weights({}, size=2**64 - 1),
    "a header of 99 MB that is not there": weights({}, size=99_000_000),
    "a header longer than the file": weights({}, 0, size=3),
    "a header of nothing": weights(b"", 0),
    "a list": weights([]),
    "a tensor that is a number": weights({"a": 1}),
    "a tensor that is a text": weights({"a": "dtype shape data_offsets"}),
    "no shape": weights({"a": {"dtype": "F32", "data_offsets": [0, 48]}}),
    "a shape that is a text": weights({"a": _tensor(shape="26")}),
    "a shape with a text": weights({"a": _tensor(shape=["2", 6])}),
    "a shape with a fraction": weights({"a": _tensor(shape=[2.0, 6])}),
    "a shape with true": weights({"a": _tensor(shape=[True, 12])}),
    "a shape below zero": weights({"a": _tensor(shape=[-2, -6])}),
    "a shape whose product wraps to its size": weights({"a": _tensor(shape=[2**62, 4, 12])}),
    "a shape with a zero and a huge one": weights({"a": _tensor([0, 2**63 - 1], (0, 0))}, 0),
    "a shape of a hundred thousand threes": weights({"a": _tensor(shape=[3] * 100_000)}),
    "a shape of a hundred thousand huge numbers": weights({"a": _tensor(shape=[2**62] * 40_000)}),
    "a size of 400 digits": weights({"a": _tensor(shape=[10**400])}),
    "one offset": weights({"a": _tensor(offsets=[0])}),
    "three offsets": weights({"a": _tensor(offsets=[0, 48, 48])}),
    "offsets that are objects": weights({"a": _tensor(offsets={"0": 0, "48": 1})}),
    "offsets turned round": weights({"a": _tensor(offsets=[48, 0])}),
    "an offset below zero": weights({"a": _tensor(offsets=[-48, 0])}),
    "an offset behind the file": weights({"a": _tensor(offsets=[0, 480], shape=[2, 60])}),
    "an offset of 2**64": weights({"a": _tensor(offsets=[2**64, 2**64 + 48])}),
    "tensors on top of each other": weights(
        {"a": _tensor(shape=[12]), "b": _tensor(shape=[4], offsets=[8, 24])}
    ),
    "a hole between tensors": weights(
        {"a": _tensor(shape=[2], offsets=[0, 8]), "b": _tensor(shape=[4], offsets=[32, 48])}
    ),
    "bytes behind the last tensor": weights({"a": _tensor()}, 49),
    "a byte too few": weights({"a": _tensor()}, 47),
    "a dtype that is half as wide": weights({"a": _tensor(dtype="F16")}),
    "a dtype that is twice as wide": weights({"a": _tensor(dtype="F64")}),
    "an unknown dtype": weights({"a": _tensor(dtype="F31")}),
    "a dtype that is a list": weights({"a": _tensor(dtype=[])}),
    "metadata that is a number": weights({"__metadata__": 1, "a": _tensor()}),
    "metadata that nests": weights({"__metadata__": {"a": {"b": "c"}}, "a": _tensor()}),
    "a name twice": weights(
        b'{"a":{"dtype":"F32","shape":[2,6],"data_offsets":[0,48]},'
        b'"a":{"dtype":"I32","shape":[2,6],"data_offsets":[0,48]}}'
    ),
    "a name twice, in two places": weights(
        b'{"a":{"dtype":"F32","shape":[6],"data_offsets":[0,24]},'
        b'"a":{"dtype":"F32","shape":[6],"data_offsets":[24,48]}}'
    ),
    "half a surrogate pair for a name": weights(
        b'{"\\ud800":{"dtype":"F32","shape":[2,6],"data_offsets":[0,48]}}'
    ),
    "a name that no pattern ends on": weights({".lora_A" * 100_000 + "\n": _tensor()}),
    "names by the thousand": weights({f"{i}.lora_B": _tensor((0,), (0, 0)) for i in range(3_000)}, 0),
    "spaces": weights(b'{"a":' + b" " * MEBIBYTE + b"}"),
    **{f"JSON: {name}": weights(text) for name, text in DOCUMENTS.items() if len(text) < 3 * MEBIBYTE},
}


def inputs() -> Iterator[tuple[str, str, bytes]]:
    """Parser, name and bytes of every text."""
    for name, data in HEADERS.items():
        yield "safetensors", name, data
    for name, make in MAKERS.items():
        yield "arrow", name, bytes(1) + make()
    for name, data in {**PICKLES, **NESTED_PICKLES}.items():
        yield "training_args", name, data
        yield "run_folder", f"training_args.bin: {name}", bytes([RUN_FILES.index("training_args.bin")]) + data
    for parser in PARSERS:
        for name, data in DOCUMENTS.items():
            if parser == "run_folder":
                for file in range(len(RUN_FILES)):
                    yield parser, f"{RUN_FILES[file]}: {name}", bytes([file]) + data
            elif parser == "arrow":
                for file in range(4):
                    yield parser, f"{file}: {name}", bytes([file]) + data
            elif parser != "safetensors" and (parser, name) not in ROWS:
                yield parser, name, data


def measure(parse: Callable[[bytes], None], data: bytes) -> dict[str, Any]:
    """Parse in a child whose memory may grow by `MOST_BYTES`; its error, seconds of processor time, and growth."""
    receive, send = os.pipe()
    pid = os.fork()
    if pid == 0:
        status: dict[str, Any] = {"error": None}
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        grown = pages * resource.getpagesize() + MOST_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (grown, grown))
        resource.setrlimit(resource.RLIMIT_CPU, (20, 20))
        before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
        try:
            parse(data)
        except BaseException as error:  # noqa: BLE001
            status["error"] = f"{type(error).__name__}: {str(error)[:200]}"
        status["seconds"] = time.process_time() - start
        status["bytes"] = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
        os.write(send, json.dumps(status).encode())
        os._exit(0)
    os.close(send)
    with os.fdopen(receive, "rb") as answer:
        text = answer.read()
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    found: dict[str, Any] = (
        json.loads(text) if text else {"error": f"ended by {code}", "seconds": 0, "bytes": 0}
    )
    return found


def run(every: int = 1) -> dict[str, Any]:
    """Measure every `every`-th input; the figures, and what broke a promise."""
    for parse in PARSERS.values():  # What is imported late is not the text's doing.
        parse(GOOD)
        parse(b"{}")
        parse(bytes([1]) + b"{}")
    # Nor is the collector's walk over the libraries that they bring.
    gc.freeze()
    broken, tried, slowest, largest = [], 0, ("", 0.0), ("", 0)
    for parser, name, data in list(inputs())[::every]:
        found = measure(PARSERS[parser], data)
        for _ in range(2):  # On a busy machine one try may take long; a long text takes it each time.
            if found["seconds"] > MOST_SECONDS:
                found = min(found, measure(PARSERS[parser], data), key=lambda one: one["seconds"])
        tried += 1
        what = f"{parser}: {name}"
        slowest = max(slowest, (what, found["seconds"]), key=lambda item: item[1])
        largest = max(largest, (what, found["bytes"]), key=lambda item: item[1])
        if found["error"] or found["seconds"] > MOST_SECONDS or found["bytes"] > MOST_BYTES:
            broken.append({"input": what, **found})
            print(broken[-1], file=sys.stderr, flush=True)
    return {
        "inputs": tried,
        "slowest": {"input": slowest[0], "seconds": round(slowest[1], 2)},
        "largest": {"input": largest[0], "mebibytes": largest[1] >> 20},
        "broken": broken,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--every", type=int, default=1, help="one input in how many")
    found = run(parser.parse_args().every)
    print(json.dumps(found, indent=2))
    sys.exit(bool(found["broken"]))


if __name__ == "__main__":
    main()
