"""Pickles of training arguments: read as data, refused by name, and never run."""

from __future__ import annotations

import collections
import contextlib
import datetime
import io
import os
import pathlib
import pickle
import subprocess
import time
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gradian.runs import training_args_bin
from gradian.runs.read import read_run_folder
from gradian.runs.training_args_bin import PickledObject, RefusedPickle, interpret, read_training_args
from tests.stress import pickles

CASES = Path(__file__).resolve().parents[1] / "fixtures" / "cases"
RUNS = CASES.parent / "runs"
REAL = [
    CASES / "29-run-trl1-transformers5" / "run" / "training_args.bin",
    RUNS / "trl0-transformers4" / "training_args.bin",
    CASES / "47-training-args-bin-hostile-or-unimportable" / "unsloth_run" / "training_args.bin",
]


def zipped(data: bytes, name: str = "training_args/data.pkl", how: int = zipfile.ZIP_STORED) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", how) as archive:
        archive.writestr(name, data)
    return made.getvalue()


class Settings:
    """Stands in for a trainer's arguments; the interpreter only ever sees its name."""


def saved(**values: Any) -> bytes:
    made = Settings()
    made.__dict__.update(values)
    return pickle.dumps(made, protocol=2)


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_plain_values_come_back_as_they_were(protocol: int) -> None:
    values = {
        "a": [1, -1, 2**40, 2**80, 0.25, True, False, None],
        "b": {"c": ("x", "é", ("y",), (1, 2), (1, 2, 3), (1, 2, 3, 4))},
        "d": [],
        "e": {},
        "f": (),
        "shared": [[1]] * 2,
    }
    assert interpret(pickle.dumps(values, protocol=protocol)) == values


@pytest.mark.parametrize("protocol", [2, 4])
def test_the_plain_classes_that_arguments_hold_become_plain_values(protocol: int) -> None:
    values = {
        "path": pathlib.PurePosixPath("/a/b"),
        "odict": collections.OrderedDict(a=1),
        "set": {1},
        "bytes": b"x\xff",
        "time": datetime.timedelta(seconds=3),
        "rate": np.float64(2e-4),
        "rate32": np.float32(0.5),
    }
    assert interpret(pickle.dumps(values, protocol=protocol)) == {
        "path": "/a/b",
        "odict": {"a": 1},
        "set": [1],
        "bytes": b"x\xff",
        "time": None,
        "rate": 2e-4,
        "rate32": 0.5,
    }


def test_torchs_own_values_become_text() -> None:
    stream = b"\x80\x02(ctorch\ndevice\nX\x04\x00\x00\x00cuda\x85Rctorch\nfloat16\nt."
    device, dtype = interpret(stream)
    assert device == "cuda"
    assert str(dtype) == "torch.float16"


def test_an_instance_is_its_class_by_name_and_its_state() -> None:
    found = read_training_args(zipped(saved(learning_rate=2e-4)))
    assert found == PickledObject(__name__, "Settings", {"learning_rate": 2e-4})


def test_the_format_before_torch_used_a_zip_is_read() -> None:
    head = [
        pickle.dumps(value, protocol=2) for value in (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True})
    ]
    assert read_training_args(b"".join([*head, saved(seed=1)])).state == {"seed": 1}


def test_an_enum_saved_by_name_as_early_python_311_did_is_its_value() -> None:
    stream = b"\x80\x02cbuiltins\ngetattr\nctransformers.trainer_utils\nSchedulerType\nX\x06\x00\x00\x00COSINE\x86R."
    assert interpret(stream) == "cosine"


class _Calls:
    def __init__(self, function: Any, *arguments: Any) -> None:
        self.function, self.arguments = function, arguments

    def __reduce__(self) -> tuple[Any, ...]:
        return self.function, self.arguments


@pytest.mark.parametrize(
    ("function", "arguments", "name"),
    [
        (os.system, ("true",), "posix.system"),
        (eval, ("1",), "builtins.eval"),
        (exec, ("1",), "builtins.exec"),
        (getattr, (os, "system"), "builtins.getattr"),
        (__import__, ("os",), "builtins.__import__"),
        (subprocess.Popen, (["true"],), "subprocess.Popen"),
        (np.load, ("x",), "numpy.load"),
        (pickle.loads, (b"N.",), "pickle.loads"),
    ],
)
@pytest.mark.parametrize("protocol", [2, 4])
def test_what_could_run_is_refused_by_name(function: Any, arguments: Any, name: str, protocol: int) -> None:
    arguments = tuple("posix" if value is os else value for value in arguments)
    data = pickle.dumps({"a": _Calls(function, *arguments)}, protocol=protocol)
    with pytest.raises(RefusedPickle, match=r"refused: training_args\.bin references") as caught:
        read_training_args(zipped(data))
    found = str(caught.value).removeprefix("refused: training_args.bin references ")
    assert found.replace("_pickle.", "pickle.") == name


@pytest.mark.parametrize(
    ("stream", "says"),
    [
        (b"\x80\x02(S'true'\nios\nsystem\n.", "opcode INST"),
        (b"\x80\x02cos\nsystem\n.", "references os.system"),
        (b"\x80\x04\x8c\x02os\x8c\x06system\x93.", "references os.system"),
        (b"\x80\x04\x8c\x02my\x8c\x0cA.b.__init__\x93.", r"references my.A.b.__init__"),
        (b"\x80\x02ctorch\nload\n.", "references torch.load"),
        (b"\x80\x02ctorch.hub\nload\n.", "references torch.hub.load"),
        (b"\x80\x02Pabc\n.", "opcode PERSID"),
        (b"\x80\x02\x82\x01.", "opcode EXT1"),
        (b"\x80\x02cmy\nThing\n]\x85R.", "no enum's"),
        (b"\x80\x02}K\x01\x85K\x02s.", "no plain value"),
        (b"\x80\x02]\x94N", "damaged|no end"),
        (b"\x80\x02a.", "damaged"),
        (b"\x80\x02K\x01.", "no training arguments but a int"),
        (b"", "damaged"),
        (b"\x80\x02" + b"N0" * 60_000 + b"N.", "opcodes"),
    ],
)
def test_other_streams_are_refused_with_their_reason(stream: bytes, says: str) -> None:
    with pytest.raises(RefusedPickle, match=says):
        read_training_args(stream)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (zipped(b"N.", "other.txt"), "0 files data.pkl"),
        (zipped(b"\x00" * 1000, how=zipfile.ZIP_DEFLATED), "compressed"),
        (zipped(b"\x00" * (5 << 20)), "claims 5242880 bytes"),
        (zipped(saved(a=1))[:-30], "damaged zip"),
        (b"PK\x03\x04", "damaged zip"),
    ],
)
def test_other_zips_are_refused_with_their_reason(data: bytes, says: str) -> None:
    with pytest.raises(RefusedPickle, match=says):
        read_training_args(data)


@pytest.mark.parametrize(
    "stream",
    [
        b"\x80\x02}" + b")" + b"\x85" * 90_000 + b"K\x01s.",  # A key whose hash would overrun the stack.
        b"\x80\x02" + b"]" * 40_000 + b"a" * 39_999 + b".",
        b"\x80\x02" + b"cmy\nThing\n)\x81}X\x01\x00\x00\x00a" * 9_000 + b"N" + b"sb" * 9_000 + b".",
        b"\x80\x02]" + b"2a" * 40_000 + b".",
        b"\x80\x02L" + b"9" * 3_000_000 + b"L\n.",
    ],
)
def test_deep_and_long_streams_end_without_a_crash(stream: bytes) -> None:
    with contextlib.suppress(RefusedPickle):
        read_training_args(stream)


@pytest.mark.parametrize("name", pickles.PICKLES)
def test_a_value_that_is_copied_again_and_again_is_refused_at_once(name: str) -> None:
    tracemalloc.start()
    start = time.process_time()
    try:
        with pytest.raises(
            RefusedPickle, match=r"copies more than|no plain value|no training arguments|no kind"
        ):
            read_training_args(pickles.PICKLES[name])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert time.process_time() - start < 5  # It took as long, or gigabytes; tracing alone takes some of it.
    assert peak < 128 << 20


@pytest.mark.parametrize("name", pickles.NESTED)
def test_settings_that_hold_themselves_twice_say_nothing_and_are_not_walked(
    tmp_path: Path, name: str
) -> None:
    assert set(read_training_args(pickles.NESTED[name]).state) == {"learning_rate", "optim", "bf16", "seed"}
    (tmp_path / "training_args.bin").write_bytes(pickles.NESTED[name])
    (tmp_path / "trainer_state.json").write_text('{"log_history": []}')
    assert read_run_folder(tmp_path).hyper.optimizer is None


def test_what_real_arguments_copy_is_far_below_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_args_bin, "_MOST_COPIED", 64 << 10)
    for path in REAL[:2]:
        assert read_training_args(path.read_bytes()).state


def ends_well(data: bytes) -> None:
    with contextlib.suppress(RefusedPickle):
        assert isinstance(read_training_args(data), PickledObject)


@settings(deadline=None, max_examples=80)
@example(b"(0.")
@given(st.binary(max_size=200))
def test_any_bytes_end_in_a_record_or_a_reason(data: bytes) -> None:
    ends_well(data)
    ends_well(zipped(data))


@settings(deadline=None, max_examples=80)
@given(
    st.sampled_from(REAL),
    st.booleans(),
    st.lists(
        st.tuples(st.integers(0, 10_000), st.integers(0, 8), st.binary(max_size=4)), min_size=1, max_size=4
    ),
)
def test_a_damaged_real_file_ends_in_a_record_or_a_reason(
    path: Path, inside: bool, edits: list[tuple[int, int, bytes]]
) -> None:
    data = path.read_bytes()
    if inside:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            data = archive.read("training_args/data.pkl")
    for place, removed, inserted in edits:
        at = place % (len(data) + 1)
        data = data[:at] + inserted + data[at + removed :]
    ends_well(zipped(data) if inside else data)
