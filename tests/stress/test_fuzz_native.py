"""The inputs that led the fuzzer through the C++ reader, again, under the sanitizers of whatever compiler is there."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.stress.fuzz_native import CORPUS, build, replay


def _sanitizes(folder: Path, compiler: str) -> bool:
    (folder / "empty.cpp").write_text("int main() {}")
    command = [
        compiler,
        "-fsanitize=address,undefined",
        str(folder / "empty.cpp"),
        "-o",
        str(folder / "empty"),
    ]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def test_the_reader_of_chunks_takes_every_input_of_the_corpus(tmp_path: Path) -> None:
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None or not _sanitizes(tmp_path, compiler):
        pytest.skip("no compiler with AddressSanitizer is installed")
    program = build("chunk_reader", tmp_path, compiler, fuzzer=False, optimise="-O1")
    assert replay("chunk_reader", program) == len(list((CORPUS / "chunk_reader").iterdir())) > 20
