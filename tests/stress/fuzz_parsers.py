"""Look for bytes on which a parser fails otherwise than it promises, led by the code that they reach.

    pip install atheris
    python -m tests.stress.fuzz_parsers manifest --seconds 600 --corpus folder

The parsers are those of `tests.stress.parsers`. What was found lies in the corpus folder as `crash-...`; add it to
`tests/stress/corpus/<parser>/` with the fix. `--minimise folder` copies the shortest inputs
that together reach every line that the corpus does, and needs no atheris.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

NAMES = (
    "manifest",
    "journal",
    "safetensors",
    "training_args",
    "dataset",
    "run_folder",
    "run_record",
    "adapter_config",
    "report",
    "config",
    "arrow",
)


def keeping(parse: Callable[[bytes], None], folder: Path) -> Callable[[bytes], None]:
    """The same, with the input kept before what it does ends the process: torch's own exit would come first."""

    def kept(data: bytes) -> None:
        try:
            parse(data)
        except BaseException:
            (folder / f"crash-{hashlib.sha256(data).hexdigest()[:16]}").write_bytes(data)
            raise

    return kept


def lines_of(parse: Callable[[bytes], None], data: bytes) -> set[tuple[str, int]]:
    """The lines of gradian that a parser goes through."""
    seen: set[tuple[str, int]] = set()
    frames: dict[CodeType, bool] = {}

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        code = frame.f_code
        if code not in frames:
            frames[code] = "/gradian/" in code.co_filename
        if not frames[code]:
            return None
        seen.add((code.co_filename, frame.f_lineno))
        return trace

    sys.settrace(trace)
    try:
        parse(data)
    finally:
        sys.settrace(None)
    return seen


def minimise(parse: Callable[[bytes], None], corpus: Path, target: Path) -> None:
    """Copy what reaches lines that no shorter input reaches."""
    target.mkdir(parents=True, exist_ok=True)
    reached: set[tuple[str, int]] = set()
    for path in sorted(corpus.iterdir(), key=lambda path: (path.stat().st_size, path.name)):
        lines = lines_of(parse, path.read_bytes())
        if not lines <= reached:
            reached |= lines
            shutil.copyfile(path, target / path.name)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parser", choices=NAMES)
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--longest", type=int, default=4096, help="bytes of an input")
    parser.add_argument(
        "--corpus", type=Path, required=True, help="folder that inputs are read from and added to"
    )
    parser.add_argument("--minimise", type=Path, help="folder to copy the useful part of the corpus to")
    parser.add_argument("--in-process", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.minimise is not None:
        from tests.stress.parsers import PARSERS as PLAIN

        PLAIN[options.parser](b"")
        minimise(PLAIN[options.parser], options.corpus, options.minimise)
        return
    if not options.in_process:
        # The library takes the process over.
        sys.exit(
            subprocess.run(
                [sys.executable, "-m", __spec__.name, *sys.argv[1:], "--in-process"], check=False
            ).returncode
        )

    import atheris

    with atheris.instrument_imports(include=["gradian", "pickletools"]):
        from tests.stress.parsers import PARSERS

        # Some import the rest of what they need at their first call.
        PARSERS[options.parser](b"")

    options.corpus.mkdir(parents=True, exist_ok=True)
    arguments = [sys.argv[0], f"-artifact_prefix={options.corpus}/", "-timeout=10", "-rss_limit_mb=4096"]
    arguments += [f"-max_total_time={options.seconds}", f"-max_len={options.longest}", "-print_final_stats=1"]
    arguments.append(str(options.corpus))
    atheris.Setup(arguments, keeping(PARSERS[options.parser], options.corpus))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
