"""Fuzz the C++ that reads an index: maps of chunk files (`chunk_reader`), scores of stored rows (`scoring`).

    python -m tests.stress.fuzz_native chunk_reader --seconds 1800 --corpus folder
    python -m tests.stress.fuzz_native scoring --replay

The targets are `tests/stress/fuzz/<target>.cpp`, under AddressSanitizer and UndefinedBehaviorSanitizer. Looking for
inputs needs clang with libFuzzer; `--replay` runs those in `tests/stress/corpus/<target>/` and takes any compiler.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CORPUS = Path(__file__).parent / "corpus"
SOURCES = {
    "chunk_reader": ("chunk_reader",),
    "scoring": (
        *(
            "chunk_reader",
            "query_dots",
            "datainf_accumulate",
            "gram",
            "scoring",
            "stored_rows",
            "row_kernels",
        ),
        *("row_kernels_portable", "row_kernels_avx2", "row_kernels_avx512", "isa", "thread_pool"),
    ),
}
_ISA_FLAGS = {
    "row_kernels_avx2": ("-mavx2", "-mfma", "-mf16c"),
    "row_kernels_avx512": ("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mfma", "-mf16c"),
}
_FLAGS = (
    *(
        "-std=c++17",
        "-g1",
        "-fno-omit-frame-pointer",
        "-ffp-contract=off",
        "-pthread",
        "-fno-sanitize-recover=all",
    ),
    f"-I{ROOT / 'tests/stress/fuzz'}",
)
_SANITIZERS = "address,undefined"


def build(
    target: str, folder: Path, compiler: str, *, fuzzer: bool, optimise: str, csrc: Path = ROOT / "csrc"
) -> Path:
    """Compile a target; gives the program.

    Raises:
        subprocess.CalledProcessError: the compiler refuses.
    """
    fuzz = Path(__file__).parent / "fuzz"
    sources = [csrc / f"{name}.cpp" for name in SOURCES[target]]
    if platform.machine().lower() not in ("x86_64", "amd64"):
        sources = [source for source in sources if source.stem not in _ISA_FLAGS]
    sources += [fuzz / f"{target}.cpp", *([] if fuzzer else [fuzz / "replay.cpp"])]
    flags = [compiler, *_FLAGS, f"-I{csrc}", optimise]

    def compiled(source: Path) -> str:
        result = str(folder / f"{source.parent.name}-{source.stem}.o")
        sanitizers = f"fuzzer-no-link,{_SANITIZERS}" if fuzzer else _SANITIZERS
        own = _ISA_FLAGS.get(source.stem, ())
        subprocess.run(
            [*flags, *own, f"-fsanitize={sanitizers}", "-c", str(source), "-o", result], check=True
        )
        return result

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(compiled, sources))
    program = folder / target
    sanitizers = f"fuzzer,{_SANITIZERS}" if fuzzer else _SANITIZERS
    subprocess.run([*flags, f"-fsanitize={sanitizers}", *objects, "-o", str(program)], check=True)
    return program


def replay(target: str, program: Path) -> int:
    """Run a target on its corpus; gives the number of inputs.

    Raises:
        subprocess.CalledProcessError: one of them is a finding.
    """
    files = sorted(str(path) for path in (CORPUS / target).iterdir())
    done = subprocess.run([str(program), *files], check=True, stdout=subprocess.PIPE, text=True)
    return int(done.stdout)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("target", choices=SOURCES)
    parser.add_argument(
        "--replay", action="store_true", help="run the corpus of the repository, and nothing else"
    )
    parser.add_argument("--compiler", help="default: clang++ to fuzz, g++ to replay")
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--longest", type=int, default=300, help="bytes of an input")
    parser.add_argument("--corpus", type=Path, help="folder that inputs are read from and added to")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="gradian-fuzz-") as folder:
        compiler = options.compiler or ("g++" if options.replay else "clang++")
        program = build(options.target, Path(folder), compiler, fuzzer=not options.replay, optimise="-O2")
        if options.replay:
            print(f"{options.target}: {replay(options.target, program)} inputs, no finding")
            return
        if options.corpus is None:
            parser.error("--corpus is needed to fuzz")
        options.corpus.mkdir(parents=True, exist_ok=True)
        limits = [f"-max_total_time={options.seconds}", f"-max_len={options.longest}", "-len_control=0"]
        command = [str(program), *limits, "-print_final_stats=1", f"-artifact_prefix={options.corpus}/"]
        sys.exit(
            subprocess.run(
                [*command, str(options.corpus), str(CORPUS / options.target)], check=False
            ).returncode
        )


if __name__ == "__main__":
    os.environ.setdefault("ASAN_OPTIONS", "detect_leaks=1")
    main()
