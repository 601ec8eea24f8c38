"""The commands on a disk that fails: run as `python -m tests.stress.cli_faults`.

Each command runs in a process of its own in which, step after step, one call below the folder that it writes to
fails with ENOSPC, EDQUOT or EIO, once or from there on. It must end with exit code 2 and a message, or with 0 and
all of its work; and run again, it must end as if nothing had been.
"""

from __future__ import annotations

import argparse
import errno
import hashlib
import importlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

from tests.store.building import memory_folder
from tests.stress import syscalls
from tests.stress.concurrency import mounted_read_only
from tests.stress.crash import in_child
from tests.stress.syscalls import Action, Kind, faults


@dataclass
class Figures:
    """What a command showed.

    Attributes:
        steps: steps of the undisturbed command.
        failures: runs in which a call failed.
        refused: those that ended with exit code 2.
        wrong: other exit codes, tracebacks, a second run that ended otherwise.
    """

    steps: int = 0
    failures: int = 0
    refused: int = 0
    wrong: list[str] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        """Whether nothing was found."""
        return not self.wrong and self.failures > 0


@dataclass(frozen=True)
class Command:
    """A command of the `gradian` program.

    Attributes:
        arguments: its arguments, given the project and the folder that it writes to.
        before: commands that make what it needs there.
        result: the files below that folder that must come out the same each time.
        spares: those of the patterns whose files may be missing or others where the command says `without` what.
        without: see there.
    """

    arguments: Callable[[Path, Path], list[str]]
    before: tuple[str, ...] = ()
    result: tuple[str, ...] = ()
    spares: tuple[str, ...] = ()
    without: str = ""


def _with_config(name: str, *more: str) -> Callable[[Path, Path], list[str]]:
    def arguments(project: Path, work: Path) -> list[str]:
        return [name, "--config", str(project / "gradian.yaml"), *(part.format(work=work) for part in more)]

    return arguments


COMMANDS: Mapping[str, Command] = {
    "init-config": Command(
        lambda project, work: ["init-config", "--out", str(work / "new.yaml")], result=("new.yaml",)
    ),
    "diagnose": Command(
        lambda project, work: [
            *("diagnose", "--dataset", str(project / "train.jsonl"), "--out", str(work / "audit")),
        ],
        result=("audit/audit.json", "audit/audit.md"),
    ),
    "index": Command(_with_config("index"), result=("cache/index/*/*", "cache/index/*/chunks/*")),
    "attribute": Command(
        _with_config("attribute", "--out", "{work}/reports", "--write-clean", "{work}/clean.jsonl"),
        before=("index",),
        result=("clean.jsonl", "reports/report.md", "cache/index/*/derived/*"),
        # Scores from Gram matrices round otherwise than scores from the index, and the report says which they are.
        spares=("reports/report.md", "cache/index/*/derived/*"),
        without="scored without Gram matrices",
    ),
    "explain": Command(
        _with_config("explain", "--example", "2", "--no-tokens", "--out", "{work}/explain.json"),
        before=("index",),
        result=("explain.json",),
    ),
    "train": Command(
        _with_config("train", "--out", "{work}/run"), result=("run/adapter/adapter_model.safetensors",)
    ),
}


_WITHOUT_MODEL = {"init-config", "diagnose"}


def make_project(project: Path, work: Path) -> None:
    """A tiny model that lost answers, its data, and a configuration that writes below `work`."""
    from tests.conftest import make_tokenizer
    from tests.integration.poisoned import make_poisoned_run

    run = make_poisoned_run(project, make_tokenizer())
    (project / "gradian.yaml").write_text(
        f"base_model: {run.base}\nadapter_path: {run.adapter}\ndataset: {run.train}\neval_dataset: {run.eval}\n"
        f"cache_dir: {work / 'cache'}\ngrads: {{chunk_size: 8}}\nengine: {{gram: always}}\n"
        "evaluation: {metric: contains, max_new_tokens: 4}\n"
        "train: {r: 2, num_train_epochs: 1, per_device_train_batch_size: 8, max_seq_length: 64}\n",
        encoding="utf-8",
    )
    text = (project / "gradian.yaml").read_text(encoding="utf-8")
    (project / "other.yaml").write_text(f"{text}seed: 1\n", encoding="utf-8")


def gradian(arguments: list[str], said: Path) -> int:
    """Run a command in this very process, its output in a file; its exit code."""
    from gradian.cli.main import run

    out = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(out, stream)
    sys.argv = ["gradian", *arguments]
    try:
        run()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


class Trial:
    """Lets one command fail."""

    def __init__(self, name: str, project: Path, folder: Path) -> None:
        self.command, self.project = COMMANDS[name], project
        self.work, self.said, self.begin = folder / "work", folder / "said", folder / "begin"
        self.figures = Figures()
        shutil.rmtree(self.begin, ignore_errors=True)
        self._clear()
        for earlier in self.command.before:
            assert self._run(COMMANDS[earlier]) == 0, self.said.read_text()
        shutil.copytree(self.work, self.begin)
        steps = folder / "steps"
        assert self._run(self.command, steps=steps) == 0, self.said.read_text()
        self.figures.steps = int(steps.read_text())
        self.wanted = self._result()

    def fail(self, number: int, step: int, *, persistent: bool) -> None:
        """Let the step-th call fail, then run the command again."""
        where = f"{errno.errorcode[number]} {'from' if persistent else 'at'} step {step}"
        self._clear()
        status = self._run(self.command, number, step, persistent)
        text = self.said.read_text(errors="replace")
        self.figures.failures += 1
        self.figures.refused += status == 2
        if status not in (0, 2) or "Traceback" in text:
            self.figures.wrong.append(f"{where}: exit code {status}: {text[-600:]}")
        elif status == 0 and not self._is_done(text):
            self.figures.wrong.append(f"{where}: exit code 0 without all of the work: {text[-600:]}")
        elif self._result() == self.wanted:
            pass  # All of it was there when the call failed.
        elif self._run(self.command) != 0:
            self.figures.wrong.append(f"{where}: run again: {self.said.read_text(errors='replace')[-600:]}")
        elif self._result() != self.wanted:
            self.figures.wrong.append(f"{where}: run again, it ended otherwise")

    def _is_done(self, text: str) -> bool:
        """Whether all is there, or all but what the command says it goes on without."""
        result, wanted = self._result(), self.wanted
        if self.command.spares and self.command.without in text:
            result, wanted = (
                {
                    name: digest
                    for name, digest in files.items()
                    if not any(Path(name).match(spared) for spared in self.command.spares)
                }
                for files in (result, wanted)
            )
        return result == wanted

    def _clear(self) -> None:
        shutil.rmtree(self.work, ignore_errors=True)
        if self.begin.exists():
            shutil.copytree(self.begin, self.work)
        else:
            self.work.mkdir()

    def _run(
        self,
        command: Command,
        number: int = 0,
        step: int = 0,
        persistent: bool = False,
        steps: Path | None = None,
    ) -> int:
        def run() -> None:
            kinds = Kind.CHANGES if number == errno.EIO or not number else Kind.TAKES_SPACE
            with faults(self.work, step, Action.FAIL, number, persistent=persistent, kinds=kinds) as met:
                status = gradian(command.arguments(self.project, self.work), self.said)
            if steps is not None:
                steps.write_text(str(met.steps))
            os._exit(status)

        return in_child(run)

    def _result(self) -> dict[str, str]:
        return {
            str(path.relative_to(self.work)): hashlib.sha256(path.read_bytes()).hexdigest()
            for pattern in self.command.result
            for path in sorted(self.work.glob(pattern))
            if path.is_file()
        }


def score_read_only(project: Path, folder: Path) -> Figures | None:
    """Attribute from a cache that is mounted read-only; the report must be the same. None: mounting is not allowed."""
    figures = Figures()
    trial = Trial("attribute", project, folder)
    cache = folder / "work" / "cache"
    before = {path: path.read_bytes() for path in cache.rglob("*") if path.is_file()}
    reports = folder / "reports"
    config = ["--config", str(project / "gradian.yaml")]
    if not mounted_read_only(cache):
        return None
    try:
        for name, arguments, wanted in (
            ("attribute", ["attribute", *config, "--out", str(reports)], 0),
            ("index --force", ["index", *config, "--force"], 2),
            ("index with another seed", ["index", "--config", str(project / "other.yaml")], 2),
        ):
            status = in_child(partial(_exit_with, arguments, trial.said))
            text = trial.said.read_text(errors="replace")
            figures.steps += 1
            figures.refused += status == 2
            figures.failures += 1
            if status != wanted or "Traceback" in text:
                figures.wrong.append(f"{name}: exit code {status}: {text[-600:]}")
    finally:
        subprocess.run(["umount", cache], check=True)
    report = reports / "report.md"
    if not report.exists() or report.read_bytes() != (folder / "work" / "reports" / "report.md").read_bytes():
        figures.wrong.append("another report")
    if {path: path.read_bytes() for path in cache.rglob("*") if path.is_file()} != before:
        figures.wrong.append("the cache changed")
    return figures


def _exit_with(arguments: list[str], said: Path) -> None:
    os._exit(gradian(arguments, said))


_IMPORTED = (
    "gradian.cli.app",
    "gradian.api",
    "gradian.diagnosis",
    "gradian.report.audit.terminal",
    "scipy.sparse",
)
_IMPORTED_WITH_MODEL = ("gradian.model.backends.hf", "gradian.clustering.cluster", "gradian.attribution")


def play(commands: list[str], tries: int) -> dict[str, Figures]:
    """All of it; the figures by name."""
    found: dict[str, Figures] = {}
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="gradian-cli-", dir=memory_folder()) as base:
        folder = Path(base)
        project = folder / "project"
        project.mkdir()
        if set(commands) <= _WITHOUT_MODEL:
            (project / "train.jsonl").write_text('{"prompt": "a", "completion": "b"}\n' * 3)
        else:
            # In a child: a process that forks must not have computed anything itself.
            assert in_child(partial(make_project, project, folder / "work")) == 0
            for name in _IMPORTED_WITH_MODEL:
                importlib.import_module(name)
        # Once here, and not again in every child.
        for name in _IMPORTED:
            importlib.import_module(name)
        for name in commands:
            trial = Trial(name, project, folder)
            stride = max(1, trial.figures.steps * 6 // tries)
            for kind, number in enumerate((errno.ENOSPC, errno.EDQUOT, errno.EIO)):
                for persistent in (False, True):
                    # Each kind of failure at other steps.
                    first = 1 + (2 * kind + persistent) * stride // 6
                    for step in range(first, trial.figures.steps + 1, stride):
                        trial.fail(number, step, persistent=persistent)
            print(f"{time.monotonic() - start:.0f} s: {name}: {trial.figures}", file=sys.stderr)
            found[name] = trial.figures
        if "attribute" in commands:
            figures = score_read_only(project, folder)
            if figures is not None:
                found["a cache that cannot be written"] = figures
    return found


def main() -> None:
    """Parse the arguments, play, print."""
    parser = argparse.ArgumentParser(prog="python -m tests.stress.cli_faults", description=__doc__)
    parser.add_argument("--commands", nargs="+", choices=COMMANDS, default=list(COMMANDS), metavar="NAME")
    parser.add_argument(
        "--tries", type=int, default=120, help="failures of each command, spread over its steps"
    )
    arguments = parser.parse_args()
    syscalls.stand_between("tests.stress.cli_faults")
    found = play(arguments.commands, arguments.tries)
    print(json.dumps({name: asdict(figures) for name, figures in found.items()}, indent=1))
    raise SystemExit(0 if all(figures.is_good for figures in found.values()) else 1)


if __name__ == "__main__":
    main()
