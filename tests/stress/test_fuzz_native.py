"""The inputs that led the fuzzer through the C++ reader, again, under the sanitizers of whatever compiler is there."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.stress.fuzz_native import CORPUS, ROOT, SOURCES, build, replay


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> str:
    """One that links AddressSanitizer."""
    folder, found = tmp_path_factory.mktemp("compiler"), shutil.which("g++") or shutil.which("c++")
    (folder / "empty.cpp").write_text("int main() {}")
    flags = ["-fsanitize=address,undefined", str(folder / "empty.cpp"), "-o", str(folder / "empty")]
    if found is None or subprocess.run([found, *flags], capture_output=True, check=False).returncode:
        pytest.skip("no compiler with AddressSanitizer is installed")
    return found


@pytest.mark.parametrize("target", SOURCES)
def test_every_input_of_the_corpus_is_taken(target: str, compiler: str, tmp_path: Path) -> None:
    program = build(target, tmp_path, compiler, fuzzer=False, optimise="-O1")
    assert replay(target, program) == len(list((CORPUS / target).iterdir())) > 20


FAULTS = {
    "a stretch that ends behind the file": (
        "chunk_reader",
        *(
            "chunk_reader.cpp",
            "> static_cast<std::size_t>(found.st_size)",
            "> 1 + static_cast<std::size_t>(found.st_size)",
        ),
    ),
    "a sum that overflows": (
        "chunk_reader",
        *("chunk_reader.cpp", "checked_sum(offset, size)", "offset + size"),
    ),
    "a product that overflows": (
        "chunk_reader",
        *(
            "checked.h",
            "if (__builtin_mul_overflow(a, b, &product)) throw",
            "if (__builtin_mul_overflow(a, b, &product)) (void)",
        ),
    ),
    "a write that reaches the file": ("chunk_reader", *("chunk_reader.cpp", "MAP_PRIVATE", "MAP_SHARED")),
    "a job that is let go twice": (
        "chunk_reader",
        *(
            "chunk_reader.cpp",
            "queue_.pop_front();\n    return;",
            "queue_.pop_front();\n    queue_.pop_front();\n    return;",
        ),
    ),
    "a row of the chunk before": ("scoring", *("stored_rows.cpp", "if (row == *after) ++after;", "")),
    "sums of the last tile left out": ("scoring", *("datainf_accumulate.cpp", "|| k == tiles_);", ");")),
    "a product beside the diagonal left out": (
        "scoring",
        *("gram.cpp", "std::min(end(other), i + 1)", "std::min(end(other), i)"),
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_corpus_finds(fault: str, compiler: str, tmp_path: Path) -> None:
    target, file, right, wrong = FAULTS[fault]
    csrc = shutil.copytree(ROOT / "csrc", tmp_path / "csrc")
    text = (csrc / file).read_text()
    assert text.count(right) == 1
    (csrc / file).write_text(text.replace(right, wrong))
    program = build(target, tmp_path, compiler, fuzzer=False, optimise="-O1", csrc=csrc)
    with pytest.raises(subprocess.CalledProcessError):
        replay(target, program)
