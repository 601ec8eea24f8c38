"""Power that fails at any moment: run as `python -m tests.stress.power_loss`.

What a run does to its files is noted call by call; `simulated_disk` gives the states that a restart may find
after each of them. In none may a half thing be taken for whole, and from each the work must go on to the
undisturbed bytes, without computing again what was flushed.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import hashlib
import json
import random
import re
import shutil
import signal
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from gradian.errors import GradianError
from gradian.store.format import BUILD_JOURNAL_FILE, JOURNAL_FILE
from tests.store.building import digests, memory_folder
from tests.stress import syscalls
from tests.stress.crash import in_child
from tests.stress.scenes import SCENES, Scene, computed
from tests.stress.simulated_disk import SimulatedDisk, Tree, materialise
from tests.stress.syscalls import Action, Kind, Operation, faults, noted, read_notes

_TEMPORARY = re.compile(r"\.[0-9a-f]{8}-\d+-\d+-[0-9a-f]{8}\.partial")


@dataclass
class Figures:
    """What a run showed.

    Attributes:
        operations: operations after which power failed.
        states: different states that were tried.
        unsound: states that are taken for whole and are not.
        stuck: states from which the work did not get to the undisturbed bytes.
        lost: states in which something that had been flushed was computed again.
    """

    operations: int = 0
    states: int = 0
    unsound: list[str] = field(default_factory=list)
    stuck: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        """Whether nothing was found."""
        return not (self.unsound or self.stuck or self.lost)


class Trial:
    """Tries the states of one scene, each once."""

    def __init__(self, scene: Scene, folder: Path, draws: int, *, split_renames: bool) -> None:
        self.scene, self.folder, self.draws, self.split = scene, folder, draws, split_renames
        self.figures = Figures()
        self._tried: set[bytes] = set()
        self._rng = random.Random(0)
        whole = folder / "undisturbed"
        whole.mkdir()
        scene.prepare(whole)
        scene.work(whole)
        self.wanted = self._files(whole)
        self._lines = {line for path in whole.rglob(JOURNAL_FILE) for line in path.read_bytes().splitlines()}

    def without_interruption(self) -> None:
        """Power fails during the work."""
        cache, log = self._begin()
        disk = SimulatedDisk(cache, split_renames=self.split)
        with noted(cache, log):
            self.scene.work(cache)
        self._fail_power(disk, read_notes(log), 0, "")

    def after_a_kill(self, step: int) -> bool:
        """The work is killed, done again, and power fails during that; whether it was killed."""
        cache, log = self._begin()
        disk = SimulatedDisk(cache, split_renames=self.split)

        def die() -> None:
            with faults(cache, step, Action.DIE), noted(cache, log):
                self.scene.work(cache)

        status = in_child(die)
        assert status in (0, -signal.SIGKILL), status
        self._again(disk, cache, log, f"killed at {step}, ")
        return status != 0

    def after_a_failed_flush(self, step: int) -> bool:
        """A flush fails and so loses what it was to save; the work is done again, and power fails during that."""
        cache, log = self._begin()
        disk = SimulatedDisk(cache, split_renames=self.split)
        failing = faults(cache, step, Action.FAIL, errno.EIO, kinds=Kind.SYNC)
        with failing as met, noted(cache, log), contextlib.suppress(GradianError):
            self.scene.work(cache)
        self._again(disk, cache, log, f"flush {step} failed, ")
        return met.hit is not None

    def _again(self, disk: SimulatedDisk, cache: Path, log: Path, after: str) -> None:
        # From the moment on at which the first try ended: the second may find nothing left to do.
        first = len(read_notes(log)) if log.exists() else 0
        with noted(cache, log):
            self.scene.work(cache)
        self._fail_power(disk, read_notes(log), first, after)

    def _begin(self) -> tuple[Path, Path]:
        cache, log = self.folder / "work", self.folder / "log"
        for path in (cache, cache.with_name("work.other")):
            shutil.rmtree(path, ignore_errors=True)
        log.unlink(missing_ok=True)
        cache.mkdir()
        self.scene.prepare(cache)
        return cache, log

    def _fail_power(self, disk: SimulatedDisk, operations: list[Operation], first: int, after: str) -> None:
        for number, operation in enumerate(operations, 1):
            disk.follow(operation)
            if number < first:
                continue
            self.figures.operations += 1
            last = number == len(operations)
            flushed = self._listed(disk.flushed)
            for tree in disk.states(self._rng, self.draws):
                self._try(tree, flushed, f"{after}operation {number} ({operation.what})", finished=last)

    def _try(self, tree: Tree, flushed: int, where: str, *, finished: bool) -> None:
        key = _fingerprint(tree, flushed, finished)
        if key in self._tried:
            return
        self._tried.add(key)
        self.figures.states += 1
        cache = self.folder / "restart"
        materialise(tree, cache)
        if not self.scene.is_sound(cache):
            self.figures.unsound.append(where)
        computed.clear()
        try:
            self.scene.work(cache)
        except GradianError as error:
            self.figures.stuck.append(f"{where}: {error}")
        if self._files(cache) != self.wanted:
            self.figures.stuck.append(where)
        if computed.value > (0 if finished else max(0, self.scene.total_chunks - flushed)):
            self.figures.lost.append(where)
        shutil.rmtree(cache)

    def _listed(self, tree: Tree) -> int:
        """Chunks of this index that the journal lists."""
        names = (JOURNAL_FILE, BUILD_JOURNAL_FILE)
        journals = (content for path, content in tree.items() if path.endswith(names) and content)
        return len(self._lines.intersection(line for content in journals for line in content.splitlines()))

    def _files(self, cache: Path) -> dict[str, str]:
        """What lies there, without locks and, where a rename may be half there, what it then leaves over."""
        left = (".lock", ".partial") if self.split else (".lock",)
        return {name: digest for name, digest in digests(cache).items() if not name.endswith(left)}


def _fingerprint(tree: Tree, *more: object) -> bytes:
    state = hashlib.sha256(repr(more).encode())
    for path, content in sorted(tree.items()):
        state.update(_TEMPORARY.sub(".partial", path).encode() + b"\0")
        state.update(b"/" if content is None else hashlib.sha256(content).digest())
    return state.digest()


def play(scenes: list[str], draws: int, stride: int, models: tuple[bool, ...]) -> dict[str, Figures]:
    """All of it; the figures by name."""
    found: dict[str, Figures] = {}
    with tempfile.TemporaryDirectory(prefix="gradian-power-", dir=memory_folder()) as base:
        for name in scenes:
            for split in models:
                folder = Path(base) / f"{len(found)}"
                folder.mkdir()
                trial = Trial(SCENES[name], folder, draws, split_renames=split)
                trial.without_interruption()
                _strided(trial.after_a_kill, stride)
                _strided(trial.after_a_failed_flush, max(1, stride // 3))
                found[f"{name}{': renames in two' if split else ''}"] = trial.figures
                shutil.rmtree(folder)
    return found


def _strided(interrupt: Callable[[int], bool], stride: int) -> None:
    step = 1
    while interrupt(step):
        step += stride


def main() -> None:
    """Parse the arguments, play, print."""
    parser = argparse.ArgumentParser(prog="python -m tests.stress.power_loss", description=__doc__)
    parser.add_argument("--scenes", nargs="+", choices=SCENES, default=list(SCENES), metavar="NAME")
    parser.add_argument("--draws", type=int, default=20, help="drawn states after each operation")
    parser.add_argument("--stride", type=int, default=1, help="steps from one kill to the next")
    parser.add_argument("--atomic-renames", action="store_true", help="try no renames that are half there")
    arguments = parser.parse_args()
    syscalls.stand_between("tests.stress.power_loss")
    found = play(
        arguments.scenes,
        arguments.draws,
        arguments.stride,
        (False,) if arguments.atomic_renames else (False, True),
    )
    print(json.dumps({name: asdict(figures) for name, figures in found.items()}, indent=1))
    raise SystemExit(0 if all(figures.is_good for figures in found.values()) else 1)


if __name__ == "__main__":
    main()
