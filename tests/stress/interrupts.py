"""Commands that are ended by a signal: how fast, with what words, and whether the printed command makes it good.

    python -m tests.stress.interrupts --random 40

Each trial is a real command over a tiny model in a process of its own, forked from this one, which has imported all that
is slow to import (`--fresh` trials start from nothing). The signal is sent when the command reaches a chosen place, or
at a random moment. Then the command that the message names is taken apart by bash, run to its end, and what it leaves
is compared byte for byte with what an undisturbed run leaves. Prints a table.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib
import json
import os
import random
import select
import shutil
import signal
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

# Quotes, spaces, a variable and a control sequence: what is printed must survive a shell and a terminal.
ODD_NAME = "it's $HOME \x1b[31m odd"
LIMIT_S = 2.0
_RUN = "import sys; sys.argv[0] = 'gradian'; from gradian.cli.main import run; run()"
_PLACE = b"(the trial's folder)"
# What differs between two undisturbed runs: times.
_NOT_COMPARED = ("gradian_run.json", "trainer_state.json", ".lock")


@dataclass(frozen=True)
class Moment:
    """A place in a command.

    Attributes:
        command: which command.
        name: what goes on there.
        place: `module:attribute` that is called then.
        call: on which call of it.
        instead: what to do there after the signal is on its way; None for what the command does.
    """

    command: str
    name: str
    place: str
    call: int = 1
    instead: Callable[[], object] | None = None


def long_native() -> None:
    """Minutes of scoring in one call of compiled code."""
    import numpy as np

    from gradian import _native

    rows = np.ones((64, 1 << 15), dtype=np.float16)
    queries = np.ones((40, 1 << 15), dtype=np.float32)
    _native.datainf_accumulate([rows] * 9000, "float16", queries, np.ones(64 * 9000), 2)


def long_torch() -> None:
    """Minutes in one call of a library that looks at no signal."""
    import torch

    torch.ones(1).expand(1 << 42).sum()


MOMENTS = (
    Moment("index", "model load", "gradian.model.load:load_model"),
    Moment("index", "encoding", "gradian.data.chat:encode_all"),
    Moment("index", "forward pass", "gradian.grads.collect:GradientCollector._one_batch", 5),
    Moment("index", "chunk write", "gradian._native:ChunkWriter.write", 4),
    Moment("index", "fsync", "os:fsync", 7),
    Moment("index", "rename", "os:rename", 2),
    Moment("index", "journal", "gradian.store.writer:append_line", 2),
    Moment("index", "last check", "gradian.store.reader:IndexReader.verify_data"),
    Moment("index", "lock of another", "gradian.store.lock:_taken", 2),
    Moment("attribute", "generation", "gradian.evaluation.generate:_decode", 2),
    Moment("attribute", "query gradients", "gradian.attribution:item_queries"),
    Moment("attribute", "long scoring", "gradian.engines.base:datainf_accumulate", 1, long_native),
    Moment("attribute", "deaf library", "gradian.attribution:score_items", 1, long_torch),
    Moment("attribute", "clustering", "gradian.attribution:cluster_examples"),
    Moment("attribute", "report", "gradian.report.write:replace_file", 2),
    Moment("train", "model load", "gradian.model.backends.hf:load_model"),
    Moment("train", "step", "transformers:Trainer.training_step", 3),
    Moment("train", "saving", "gradian.model.backends.trainer:save_adapter"),
    Moment("train", "publishing", "gradian.model.backends.base:_publish"),
    Moment("verify", "forward pass", "gradian.grads.collect:GradientCollector._one_batch", 2),
    Moment("explain", "forward pass", "gradian.grads.collect:GradientCollector._one_batch", 2),
    Moment("diagnose", "checks", "gradian.diagnosis:run_audit"),
)
QUICK = (
    ("index", "forward pass"),
    ("index", "lock of another"),
    ("attribute", "generation"),
    ("attribute", "long scoring"),
    ("attribute", "deaf library"),
    ("train", "step"),
)


@dataclass(frozen=True)
class Ended:
    """How one command ended.

    Attributes:
        seconds: from the signal to the end of the process; None if it ended by itself.
        code: its exit code; negative for a signal that killed it.
        errors: what it wrote to standard error.
        load: average number of processes that wanted a core.
    """

    seconds: float | None
    code: int
    errors: str
    load: float


@dataclass(frozen=True)
class Trial:
    """One interruption and what came of it; `problems` is empty when all was well."""

    command: str
    moment: str
    signal: str
    ended: Ended
    same: bool
    problems: tuple[str, ...]


class Inputs:
    """The model, the run and the datasets that all trials share, and the folders of the trials."""

    def __init__(self, folder: Path) -> None:
        from gradian.config import load_config
        from gradian.model.backends.base import run_training

        self.folder = folder
        self._trials = 0
        _make_model(folder / "model")
        rows = [
            {
                "prompt": f"{i} and {i}?",
                "completion": "wrong" if i % 3 else f"{2 * i}",
                "cluster": f"c{i % 3}",
            }
            for i in range(36)
        ]
        _write_rows(folder / "train.jsonl", rows)
        _write_rows(folder / "eval.jsonl", [{"prompt": f"{i}?", "completion": f"{2 * i}"} for i in range(6)])
        run_training(load_config(self._config(folder / "first", "made")))

    def _config(self, folder: Path, run: str) -> Path:
        folder.mkdir(parents=True)
        config = {
            "base_model": str(self.folder / "model"),
            "adapter_path": str(self.folder / "first" / "made" / "adapter"),
            "dataset": str(self.folder / "train.jsonl"),
            "eval_dataset": str(self.folder / "eval.jsonl"),
            "cache_dir": str(folder / "cache"),
            "device": "cpu",
            "grads": {"chunk_size": 6, "batch_size": 2},
            "evaluation": {
                "metric": "exact_match",
                "max_new_tokens": 6,
                "batch_size": 2,
                "require_significant": False,
            },
            "clustering": {"method": "kmeans", "n_clusters": 3},
            "train": {"output_dir": str(folder / run), "num_train_epochs": 1.0, "r": 4, "logging_steps": 1},
        }
        path = folder / "gradian.yaml"
        path.write_text(yaml.safe_dump(config), encoding="utf-8")
        return path

    def trial(self) -> Path:
        """A new folder with a config of its own, under an odd name."""
        self._trials += 1
        folder = self.folder / f"{self._trials} {ODD_NAME}"
        self._config(folder, "run")
        return folder

    def words(self, command: str, folder: Path) -> list[str]:
        """The command line of a trial, without the program."""
        config, run = ["--config", str(folder / "gradian.yaml")], str(self.folder / "first" / "made")
        if command == "verify":
            return ["verify", *config, "--run", run, "--out", str(folder / "out")]
        if command == "diagnose":
            data = ["--dataset", str(self.folder / "train.jsonl"), "--run", run]
            return ["diagnose", *data, "--out", str(folder / "out")]
        if command == "explain":
            return ["explain", *config, "--example", self.first_row(), "--out", str(folder / "figures.json")]
        more = {"attribute": ["--out", str(folder / "out"), "--run", run]}
        return [command, *config, *more.get(command, [])]

    def first_row(self) -> str:
        """The id of the first training row."""
        from gradian.data.formats import load_dataset

        return load_dataset(self.folder / "train.jsonl").examples[0].id


def _make_model(folder: Path) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from gradian.model.load import quiet_transformers
    from tests.conftest import make_tokenizer

    tokenizer = make_tokenizer()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with quiet_transformers():
        LlamaForCausalLM(config).save_pretrained(folder)
        tokenizer.save_pretrained(folder)


def _write_rows(path: Path, rows: Sequence[dict[str, str]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def import_all() -> None:
    """Import what the commands import, so that a fork has it."""
    for name in ("accelerate", "peft", "sklearn.cluster", "transformers.trainer", "gradian.cli.app"):
        importlib.import_module(name)
    for name in ("attribution", "diagnosis", "explanation", "verification", "model.backends.hf", "_native"):
        importlib.import_module(f"gradian.{name}")


def start(words: Sequence[str], errors: Path, moment: Moment | None) -> tuple[int, int]:
    """Fork a command; give its process and a pipe on which it says that the moment has come."""
    heard, told = os.pipe()
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        os.close(told)
        return pid, heard
    code = 1
    try:
        os.close(heard)
        code = _command(words, errors, moment, told)
    finally:
        os._exit(code)


def _command(words: Sequence[str], errors: Path, moment: Moment | None, told: int) -> int:
    default_signals()
    where = os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for fd, target in ((nowhere, 0), (nowhere, 1), (where, 2)):
        os.dup2(fd, target)
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w", buffering=1)
    sys.argv = ["gradian", *words]
    if moment is not None:
        _announce(moment, told)
    try:
        importlib.import_module("gradian.cli.main").run()
    except SystemExit as end:
        return int(end.code or 0)
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


def default_signals() -> None:
    """Take signals as a program started from a shell does, whatever this process was told to ignore."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def _announce(moment: Moment, told: int) -> None:
    module, _, attribute = moment.place.partition(":")
    holder: Any = importlib.import_module(module)
    *path, name = attribute.split(".")
    for part in path:
        holder = getattr(holder, part)
    function, calls = getattr(holder, name), [0]

    def watched(*arguments: Any, **options: Any) -> Any:
        calls[0] += 1
        if calls[0] == moment.call:
            os.write(told, b"!")
            if moment.instead is not None:
                moment.instead()
        return function(*arguments, **options)

    setattr(holder, name, watched)


def wait(pid: int) -> int:
    """The exit code of a process."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def reached(heard: int, seconds: float) -> bool:
    """Whether the command says in time that its moment has come."""
    ready = select.select([heard], [], [], seconds)[0]
    return bool(ready) and os.read(heard, 1) == b"!"


def interrupt(
    words: Sequence[str], errors: Path, number: signal.Signals, moment: Moment, delay: float
) -> Ended:
    """Run a command and send it a signal `delay` seconds after the moment."""
    pid, heard = start(words, errors, moment)
    if reached(heard, 300):
        time.sleep(delay)
    sent = time.monotonic()
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        sent = 0.0
    code = wait(pid)
    seconds = time.monotonic() - sent
    os.close(heard)
    return _ended(code, seconds, errors, number)


def interrupt_fresh(words: Sequence[str], errors: Path, number: signal.Signals, delay: float) -> Ended:
    """The same with a process that imports everything itself."""
    with errors.open("ab") as file:
        process = subprocess.Popen(
            [sys.executable, "-c", _RUN, *words],
            stdout=subprocess.DEVNULL,
            stderr=file,
            preexec_fn=default_signals,
        )
        time.sleep(delay)
        sent = time.monotonic()
        process.send_signal(number)
        code = process.wait()
    return _ended(code, time.monotonic() - sent, errors, number)


def _ended(code: int, seconds: float, errors: Path, number: signal.Signals) -> Ended:
    text = errors.read_text(encoding="utf-8", errors="surrogateescape") if errors.exists() else ""
    return Ended(None if code == 0 else round(seconds, 3), code, text, os.getloadavg()[0])


def taken_apart(line: str) -> list[str]:
    """The words that a shell makes of a line."""
    done = subprocess.run(["bash", "-c", f"printf '%s\\0' {line}"], capture_output=True, check=True)
    return [os.fsdecode(word) for word in done.stdout.split(b"\0")[:-1]]


def digests(folder: Path) -> dict[str, str]:
    """SHA-256 of what a command left in its folder, but for times; paths into it are taken out."""
    inside = [
        json.dumps(str(folder))[1:-1].encode(),
        json.dumps(str(folder), ensure_ascii=False)[1:-1].encode(),
    ]
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name != "errors" and not path.name.endswith(_NOT_COMPARED):
            data = path.read_bytes()
            for prefix in (*inside, os.fsencode(folder)):
                data = data.replace(prefix, _PLACE)
            found[str(path.relative_to(folder))] = hashlib.sha256(data).hexdigest()
    found.pop("gradian.yaml")
    return found


def leavings(folder: Path) -> list[str]:
    """What a finished command must not leave."""
    return [
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if "partial" in path.name or path.name == "writable"
    ]


def faults(ended: Ended, number: signal.Signals) -> list[str]:
    """What is wrong with how a command was ended by a signal."""
    problems = []
    if ended.code != 128 + number:
        problems.append(f"exit code {ended.code}")
    if (ended.seconds or 0.0) > LIMIT_S:
        problems.append(f"took {ended.seconds:.2f} s")
    if f"gradian: interrupted by {number.name}\n" not in ended.errors:
        problems.append(f"no word of it: {ended.errors[-300:]!r}")
    if "Traceback" in ended.errors or "Exception ignored" in ended.errors:
        problems.append(f"a traceback: {ended.errors[-600:]!r}")
    if not ended.errors.replace("\n", "").isprintable():
        problems.append("what was printed is no plain text")
    return problems


class Harness:
    """Runs trials and judges them."""

    def __init__(self, inputs: Inputs) -> None:
        self.inputs = inputs
        self._wanted: dict[str, dict[str, str]] = {}
        self._length: dict[str, float] = {}
        # A random model accuses no row, so `verify` ends with an error of the user's.
        self._code: dict[str, int] = {}

    def undisturbed(self, command: str) -> dict[str, str]:
        """What a command leaves that no one disturbs."""
        if command not in self._wanted:
            folder = self.inputs.trial()
            begun = time.monotonic()
            pid, heard = start(self.inputs.words(command, folder), folder / "errors", None)
            code = wait(pid)
            os.close(heard)
            if code != (2 if command == "verify" else 0):
                raise RuntimeError(f"{command} ended with {code}:\n{(folder / 'errors').read_text()}")
            self._code[command] = code
            self._length[command] = time.monotonic() - begun
            self._wanted[command] = digests(folder)
        return self._wanted[command]

    def length(self, command: str) -> float:
        """How long it takes, in seconds."""
        self.undisturbed(command)
        return self._length[command]

    def at_moment(self, moment: Moment, number: signal.Signals) -> Trial:
        """Interrupt a command at a moment of its own."""
        self.undisturbed(moment.command)
        folder = self.inputs.trial()
        words = self.inputs.words(moment.command, folder)
        with self._held_lock(folder) if moment.name == "lock of another" else contextlib.nullcontext():
            ended = interrupt(words, folder / "errors", number, moment, 0.005)
        return self._judged(moment.command, moment.name, number, folder, words, ended)

    def at_random(self, command: str, number: signal.Signals, rng: random.Random) -> Trial:
        """Interrupt a command at any moment."""
        folder = self.inputs.trial()
        words = self.inputs.words(command, folder)
        delay = rng.random() * self.length(command)
        # Before it took the signals over, one ends it as it ends any program: without a word.
        begun = Moment(command, "any", "gradian.cli.main:_run")
        ended = interrupt(words, folder / "errors", number, begun, delay)
        return self._judged(command, "any", number, folder, words, ended)

    def fresh(self, command: str, number: signal.Signals, rng: random.Random, longest: float) -> Trial:
        """Interrupt a command that imports everything itself, at any moment of its first seconds."""
        folder = self.inputs.trial()
        words = self.inputs.words(command, folder)
        ended = interrupt_fresh(words, folder / "errors", number, 0.15 + rng.random() * longest)
        return self._judged(command, "start", number, folder, words, ended)

    @contextlib.contextmanager
    def _held_lock(self, folder: Path) -> Iterator[None]:
        """Hold the lock of the index that the command is about to build."""
        from gradian.store.lock import file_lock

        id_ = next(name.split("/")[2] for name in self.undisturbed("index") if name.endswith("manifest.json"))
        where = folder / "cache" / "index"
        where.mkdir(parents=True)
        with file_lock(where / f"{id_}.lock", wait_seconds=0):
            yield

    def _judged(
        self, command: str, moment: str, number: signal.Signals, folder: Path, words: list[str], ended: Ended
    ) -> Trial:
        problems = []
        if ended.seconds is not None:
            problems += faults(ended, number)
            lines = ended.errors.splitlines()
            if not problems:
                words = taken_apart(lines[-1])[1:]
        pid, heard = start(words, folder / "errors", None)
        code = wait(pid)
        os.close(heard)
        if code != self._code[command]:
            problems.append(
                f"the command that goes on ended with {code}: {(folder / 'errors').read_text()[-300:]}"
            )
        found = digests(folder)
        same = found == self.undisturbed(command)
        if not same:
            wanted = self.undisturbed(command)
            problems.append(
                f"differs: {sorted(name for name in {*found, *wanted} if found.get(name) != wanted.get(name))}"
            )
        problems += [f"left {name}" for name in leavings(folder)]
        shutil.rmtree(folder)
        return Trial(command, moment, number.name, ended, same, tuple(problems))


def table(trials: Sequence[Trial]) -> str:
    """The figures, a line for each command, moment and signal."""
    lines = ["command    moment            signal   n  median s  worst s  codes      same  load"]
    groups: dict[tuple[str, str, str], list[Trial]] = {}
    for trial in trials:
        groups.setdefault((trial.command, trial.moment, trial.signal), []).append(trial)
    for (command, moment, name), group in groups.items():
        times = [trial.ended.seconds for trial in group if trial.ended.seconds is not None]
        codes = ",".join(map(str, sorted({trial.ended.code for trial in group})))
        median, worst = (f"{statistics.median(times):.2f}", f"{max(times):.2f}") if times else ("-", "-")
        same = "yes" if all(trial.same for trial in group) else "NO"
        load = statistics.mean(trial.ended.load for trial in group)
        lines.append(
            f"{command:10} {moment:17} {name:8}{len(group):2} {median:>9} {worst:>8}  {codes:10} {same:4} {load:5.1f}"
        )
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the trials; return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--random", type=int, default=0, metavar="N", help="random moments for each command and signal"
    )
    parser.add_argument(
        "--fresh", type=int, default=0, metavar="N", help="the same for processes that begin from nothing"
    )
    parser.add_argument(
        "--fresh-s", type=float, default=15.0, metavar="S", help="their first seconds (default: 15)"
    )
    parser.add_argument("--commands", nargs="+", metavar="NAME", help="only these commands")
    parser.add_argument("--moments", nargs="+", metavar="NAME", help="only these moments; `none` for none")
    parser.add_argument("--signals", nargs="+", default=["SIGINT", "SIGTERM"], metavar="NAME")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="a few moments, one signal each")
    options = parser.parse_args(argv)
    os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", OMP_NUM_THREADS="1", COLUMNS="100")
    import_all()
    rng, trials = random.Random(options.seed), []
    moments = [
        moment
        for moment in MOMENTS
        if (options.commands is None or moment.command in options.commands)
        and (options.moments is None or moment.name in options.moments)
        and (not options.quick or (moment.command, moment.name) in QUICK)
    ]
    signals = [signal.Signals[name] for name in options.signals]
    commands = options.commands or ["index", "attribute", "train"]

    def done(trial: Trial) -> None:
        trials.append(trial)
        print(f"{trial.command}, {trial.moment}, {trial.signal}: {trial.ended.seconds} s", file=sys.stderr)
        for problem in trial.problems:
            print(f"{trial.command}, {trial.moment}, {trial.signal}: {problem}", file=sys.stderr, flush=True)

    with TemporaryDirectory(prefix="interrupts-") as folder:
        harness = Harness(Inputs(Path(folder)))
        for place, moment in enumerate(moments):
            for number in [signals[place % len(signals)]] if options.quick else signals:
                done(harness.at_moment(moment, number))
        for command in commands:
            for number in signals:
                for _ in range(options.random):
                    done(harness.at_random(command, number, rng))
                for _ in range(options.fresh):
                    done(harness.fresh(command, number, rng, options.fresh_s))
    print(table(trials))
    return 1 if any(trial.problems for trial in trials) else 0


if __name__ == "__main__":
    sys.exit(main())
