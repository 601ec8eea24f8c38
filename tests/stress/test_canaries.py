from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.stress import canaries
from tests.stress.canaries import Case, Outcome, arguments, observe, pickles, prepare
from tests.stress.serving import Server
from tests.stress.watched import Watch

# Canaries that do not stand in each other's way, for one run that holds all of them; the script plants each alone.
TOGETHER = (
    "modules, hooks and libraries beside the data",
    "numpy object arrays",
    "pickles with the data",
    "run/optimizer.pt",
    "run/rng_state.pth",
    "run/random_states_0.pkl",
    "training_args.bin, zipped: exec, protocol 2",
    "YAML tag 0 in the folder",
    "YAML tag 4 in the model card",
    "safetensors metadata",
    "auto_map: known",
    "megatron_core names a module",
    "generation_config runs code of its own",
    "custom_generate beside the weights",
    "templates in rows",
)
# What ends in an error of its own, each planted alone.
ALONE = ("chat template 2", "YAML tag 1 in the config", "Arrow extension type that is a pickle")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("server"))
    yield server
    # Importing torch, transformers and peft has nothing to do with a network or another program either.
    assert server.close() == ()


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory, tiny_model_dir: Path, tiny_adapter_dir: Path) -> Path:
    folder = tmp_path_factory.mktemp("source")
    (folder / "base").symlink_to(tiny_model_dir)
    (folder / "adapter").symlink_to(tiny_adapter_dir)
    rows = "".join(f'{{"prompt": "{c}?", "completion": "{c}{c}"}}\n' for c in "abcdef")
    (folder / "train.jsonl").write_text(rows)
    (folder / "eval.jsonl").write_text(rows[: 3 * len(rows) // 6])
    return folder


@pytest.mark.parametrize("command", ["audit", "diagnose", "attribute"])
def test_no_canary_fires_and_the_watch_has_nothing_to_report(
    command: str, server: Server, source: Path, tmp_path: Path
) -> None:
    case, planted = prepare(tmp_path / "case", source, "together"), canaries.slots()
    for name in TOGETHER:
        planted[name](case)
    outcome = observe(server, case, command)
    assert outcome.faults == []
    assert outcome.code == canaries.DONE, outcome.output


@pytest.mark.parametrize("name", ALONE)
def test_a_canary_that_stands_in_the_way_is_a_typed_error_or_a_finding(
    name: str, server: Server, source: Path, tmp_path: Path
) -> None:
    case = prepare(tmp_path / "case", source, name)
    canaries.slots()[name](case)
    assert observe(server, case, "diagnose").faults == []


def test_every_slot_is_planted_once_and_there_are_many() -> None:
    assert len(canaries.slots()) > 150
    assert set(TOGETHER) | set(ALONE) <= set(canaries.slots())


@pytest.mark.parametrize("how", ["mkdir, protocol 2", "exec, protocol 4", "INST", "OBJ", "python 2"])
def test_a_canary_that_is_loaded_does_fire(how: str, tmp_path: Path) -> None:
    case = Case(tmp_path, "self-test")
    case.nest.mkdir()
    pickle.loads(pickles(case)[how])  # noqa: S301 - it is ours
    assert case.trace.exists()
    assert Outcome("x", "x", 0, 0.0, any(case.nest.iterdir()), [], "").faults == ["the canary fired"]


def test_the_watch_refuses_and_reports_what_an_audit_has_no_business_with(tmp_path: Path) -> None:
    untrusted = tmp_path / "untrusted"
    untrusted.mkdir()
    (untrusted / "evil.py").write_text("X = 1\n")
    attempts = (
        "import subprocess; subprocess.run(['true'])",
        "import os; os.system('true')",
        "import os; os.posix_spawn('/bin/true', ['true'], {})",
        "import os; os.execv('/bin/true', ['true'])",
        "import os; os.fork()",
        "import socket; socket.create_connection(('127.0.0.1', 9))",
        "import socket; socket.getaddrinfo('localhost', 80)",
        "import urllib.request; urllib.request.urlopen('http://127.0.0.1:9')",
        "import pickle; pickle.loads(b'cos\\nmkdir\\n.')",
        "import marshal; marshal.loads(marshal.dumps(1))",
        f"import sys; sys.path.insert(0, {str(untrusted)!r}); import evil",
        f"exec(compile('1', {str(untrusted / 'x.py')!r}, 'exec'))",
        f"import ctypes; ctypes.CDLL({str(untrusted / 'x.so')!r})",
        f"open({str(untrusted / 'made')!r}, 'w')",
    )
    tried = "\n".join(f"try:\n    exec({attempt!r})\nexcept PermissionError: pass" for attempt in attempts)
    report = tmp_path / "report.jsonl"
    code = (
        "import sys; sys.dont_write_bytecode = True\n"
        "import subprocess, socket, urllib.request, pickle, marshal, ctypes\n"
        "from tests.stress.watched import Watch\n"
        f"sys.addaudithook(Watch({str(report)!r}, [{str(untrusted)!r}]))\n{tried}"
    )
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not (untrusted / "made").exists()
    reported = report.read_text().splitlines()
    assert len(reported) >= len(attempts), reported


def test_the_watch_lets_ordinary_work_pass(tmp_path: Path) -> None:
    watch = Watch(str(tmp_path / "report"), [str(tmp_path / "untrusted")])
    for event, given in (
        ("open", (str(tmp_path / "untrusted" / "x"), "r", os.O_RDONLY)),
        ("open", (str(tmp_path / "out"), "w", os.O_WRONLY)),
        ("compile", (None, "<template>")),
        ("ctypes.dlopen", ("libc.so.6",)),
        ("socket.__new__", (None, socket.AF_INET, socket.SOCK_STREAM, 0)),
    ):
        watch(event, given)
    assert (tmp_path / "report").read_text() == ""


def test_the_command_lines_name_every_input(tmp_path: Path) -> None:
    case = Case(tmp_path, "x")
    assert {"--dataset", "--eval-dataset", "--run", "--base-model", "--adapter", "--config", "--out"} <= set(
        arguments(case, "attribute")
    )
