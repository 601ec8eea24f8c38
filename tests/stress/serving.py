"""Runs many commands in forks of one process that has imported everything, each under the watch of `watched.py`."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PLAIN = {"NO_COLOR": "1", "COLUMNS": "100"}
COLOURED = {"FORCE_COLOR": "1", "TERM": "xterm-256color", "COLORTERM": "truecolor", "COLUMNS": "100"}


@dataclass(frozen=True)
class Answer:
    """What a command did.

    Attributes:
        code: its exit code; negative for a signal.
        seconds: how long it took.
        reported: what the watch has to say, a JSON object each.
        output: standard output and error.
    """

    code: int
    seconds: float
    reported: tuple[str, ...]
    output: str


class Server:
    """The process.

    Args:
        folder: for its own files.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.at_import = folder / "imports.jsonl"
        self.at_import.touch()
        environment = {
            **{name: value for name, value in os.environ.items() if name not in (*PLAIN, *COLOURED)},
            "PYTHONPATH": str(ROOT),
            "HF_HOME": str(folder / "hf"),
            # Nothing holds the libraries back from a network but the watch.
            "HF_HUB_OFFLINE": "0",
            "TRANSFORMERS_OFFLINE": "0",
            "OMP_NUM_THREADS": "1",
        }
        program = str(Path(__file__).with_name("watched.py"))
        self.process = subprocess.Popen(
            [sys.executable, program, str(self.at_import), "", "--serve"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=folder,
        )
        self._line()

    def run(
        self,
        argv: Sequence[str],
        *,
        cwd: Path,
        untrusted: Sequence[Path] = (),
        seconds: float = 60.0,
        environment: Mapping[str, str] = PLAIN,
        terminal: bool = False,
    ) -> Answer:
        """Run `gradian ARGV` and wait for it; `terminal` gives it one in the place of a file."""
        report, file = self.folder / "report.jsonl", self.folder / "output"
        report.unlink(missing_ok=True)
        started = time.monotonic()
        with _Output(file, terminal=terminal) as output:
            job = {
                "argv": list(argv),
                "cwd": str(cwd),
                "untrusted": [str(folder) for folder in untrusted],
                "report": str(report),
                "output": output.name,
                "seconds": seconds,
                "environment": dict(environment),
            }
            assert self.process.stdin is not None
            self.process.stdin.write(json.dumps(job) + "\n")
            self.process.stdin.flush()
            code = int(json.loads(self._line())["code"])
        return Answer(code, time.monotonic() - started, tuple(report.read_text().splitlines()), output.text)

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def close(self) -> tuple[str, ...]:
        """End the process and return what the watch had to say on its imports."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()
        return tuple(self.at_import.read_text().splitlines())


class _Output:
    # Where a command writes: a file, or a terminal that is read while the command runs.

    def __init__(self, file: Path, *, terminal: bool) -> None:
        self.name, self.text = str(file), ""
        self._file, self._terminal = file, terminal
        self._read = bytearray()

    def __enter__(self) -> _Output:
        if self._terminal:
            self._ours, self._theirs = pty.openpty()
            self.name = os.ttyname(self._theirs)
            self._reader = threading.Thread(target=self._drain)
            self._reader.start()
        return self

    def _drain(self) -> None:
        with contextlib.suppress(OSError):  # The other side has closed.
            while block := os.read(self._ours, 1 << 16):
                self._read += block

    def __exit__(self, *_: object) -> None:
        if self._terminal:
            os.close(self._theirs)
            self._reader.join()
            os.close(self._ours)
            self.text = self._read.decode("utf-8", "surrogateescape").replace("\r\n", "\n")
        else:
            self.text = self._file.read_bytes().decode("utf-8", "surrogateescape")
