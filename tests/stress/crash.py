"""Work that is killed, or whose calls fail, at every step: run as `python -m tests.stress.crash`.

A step is a call that changes the file system (write, flush, rename, mkdir, remove, allocate, create), whoever
makes it: `syscalls.py` counts them below Python, so the compiled writer's own calls are steps too.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import json
import os
import random
import shutil
import signal
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

from gradian.errors import DiskSpaceError, GradianError, StoreError
from tests.store.building import digests, memory_folder
from tests.stress import syscalls
from tests.stress.scenes import SCENES, Scene, build_counting, computed, index_is_sound
from tests.stress.syscalls import Action, Kind, faults


@dataclass
class Figures:
    """What a run showed.

    Attributes:
        steps: steps of the undisturbed work.
        interruptions: times that it was killed, or that a call failed.
        unsound: interruptions that left something that is taken for whole and is not.
        untyped: errors of another kind than the scene's.
        differ: interruptions after which doing the work again did not end in the undisturbed bytes.
        recomputed: most chunks that one interruption cost.
    """

    steps: int = 0
    interruptions: int = 0
    unsound: list[str] = field(default_factory=list)
    untyped: list[str] = field(default_factory=list)
    differ: list[str] = field(default_factory=list)
    recomputed: int = 0

    @property
    def is_good(self) -> bool:
        """Whether nothing was found."""
        return not (self.unsound or self.untyped or self.differ) and self.recomputed <= 1


def in_child(work: Callable[[], object]) -> int:
    """Run in a forked process; its exit status, negative for a signal."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException:  # noqa: BLE001
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def kill_at_every_step(scene: Scene, action: Action, stride: int, again: int, folder: Path) -> Figures:
    """Kill the work at step 1, 1 + stride, ... until it gets through; then do it again.

    Args:
        scene: the work.
        action: how it dies.
        stride: steps from one kill to the next.
        again: kill the second try too, at every `again`-th step of its own; 0 lets it be.
        folder: where to do it.
    """
    figures, wanted, step = *_undisturbed(scene, folder / "undisturbed"), 1
    while True:
        cache = folder / "killed"
        cache.mkdir()
        scene.prepare(cache)
        computed.clear()
        kills, at, status = 0, step, -signal.SIGKILL
        while status == -signal.SIGKILL:
            status = in_child(partial(_dying, scene, cache, at, action))
            kills += status == -signal.SIGKILL
            if not scene.is_sound(cache):
                figures.unsound.append(f"step {step}, then {at}")
            at = (step % again + 1 if kills == 1 else at + again) if again else 1 << 30
        if status != 0:
            figures.differ.append(f"step {step}: it failed")
        if kills == 0:
            return figures
        figures.interruptions += kills
        figures.recomputed = max(figures.recomputed, -(-(computed.value - scene.chunks) // kills))
        if digests(cache) != wanted:
            figures.differ.append(f"step {step}")
        _remove(cache)
        step += stride


def _undisturbed(scene: Scene, folder: Path, kinds: Kind = Kind.CHANGES) -> tuple[Figures, dict[str, str]]:
    """Figures with the number of steps, and what the work leaves."""
    folder.mkdir()
    scene.prepare(folder)
    with faults(folder, kinds=kinds) as met:
        scene.work(folder)
    return Figures(steps=met.steps), digests(folder)


def _dying(scene: Scene, cache: Path, step: int, action: Action) -> None:
    with faults(cache, step, action):
        scene.work(cache)


def fail_at_every_step(
    scene: Scene,
    number: int,
    folder: Path,
    *,
    persistent: bool,
    action: Action = Action.FAIL,
    kinds: Kind = Kind.CHANGES,
    stride: int = 1,
) -> Figures:
    """Let the k-th call fail, k = 1, 1 + stride, ..., until the work gets through; then do it again.

    Args:
        scene: the work.
        number: the errno.
        folder: where to do it.
        persistent: all later calls fail as well.
        action: FAIL, or SHORT: the call does less than it was asked for, which is no error.
        kinds: the calls that are steps.
        stride: steps from one failure to the next.
    """
    figures, wanted, step = *_undisturbed(scene, folder / "undisturbed", kinds), 1
    while True:
        cache = folder / "failed"
        cache.mkdir()
        scene.prepare(cache)
        computed.clear()
        raised: Exception | None = None
        with faults(cache, step, action, number, persistent=persistent, kinds=kinds) as met:
            try:
                scene.work(cache)
            except Exception as error:  # noqa: BLE001
                raised = error
        if met.hit is None:
            return figures
        where = f"step {step} ({met.hit.name})"
        figures.interruptions += 1
        if raised is not None and (action is Action.SHORT or not _is_typed(raised, scene, number)):
            figures.untyped.append(f"{where}: {type(raised).__name__}: {raised}")
        if not scene.is_sound(cache):
            figures.unsound.append(where)
        figures.differ += _failure(scene.work, cache, where)
        figures.recomputed = max(figures.recomputed, computed.value - scene.chunks)
        if digests(cache) != wanted:
            figures.differ.append(where)
        _remove(cache)
        step += stride


def _failure(work: Callable[[Path], object], cache: Path, where: str) -> list[str]:
    """What work says that fails, in a list."""
    try:
        work(cache)
    except GradianError as error:
        return [f"{where}: {error}"]
    return []


def _is_typed(raised: Exception, scene: Scene, number: int) -> bool:
    """Whether an error is of the scene's kind; of a lack of space, where the store's own call met it."""
    lacks_space = number in (errno.ENOSPC, errno.EDQUOT) and scene.error is StoreError
    return isinstance(raised, DiskSpaceError if lacks_space else scene.error)


def kill_at_random(kills: int, folder: Path, n: int = 3000, chunk_size: int = 100) -> Figures:
    """Kill a longer build again and again, at any moment, each build some three times."""

    def work(cache: Path) -> None:
        build_counting(cache, n=n, chunk_size=chunk_size, batch=25)

    scene = Scene(work, index_is_sound, chunks=-(-n // chunk_size))
    figures, wanted = _undisturbed(scene, folder / "undisturbed")
    start = time.monotonic()
    (folder / "timed").mkdir()
    work(folder / "timed")
    length = time.monotonic() - start
    rng = random.Random(0)
    while figures.interruptions < kills:
        cache = folder / "killed"
        cache.mkdir()
        computed.clear()
        killed = 0
        for _ in range(3):
            pid = os.fork()
            if pid == 0:
                with contextlib.suppress(BaseException):
                    work(cache)
                os._exit(0)
            time.sleep(rng.random() * length * 0.6)
            os.kill(pid, signal.SIGKILL)
            killed += os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
            if not index_is_sound(cache):
                figures.unsound.append(f"kill {figures.interruptions + killed}")
        figures.interruptions += killed
        figures.differ += _failure(work, cache, f"after kill {figures.interruptions}")
        if killed:
            figures.recomputed = max(figures.recomputed, -(-(computed.value - scene.chunks) // killed))
        if digests(cache) != wanted:
            figures.differ.append(f"after kill {figures.interruptions}")
        _remove(cache)
    return figures


def _remove(folder: Path) -> None:
    for path in (folder, folder.with_name(f"{folder.name}.other")):
        shutil.rmtree(path, ignore_errors=True)


DEATHS = {"before": Action.DIE, "after": Action.DIE_AFTER, "torn": Action.DIE_TORN}


def play(scenes: list[str], stride: int, again: int, kills: int) -> dict[str, Figures]:
    """All of it; the figures by name."""
    found: dict[str, Figures] = {}
    with tempfile.TemporaryDirectory(prefix="gradian-crash-", dir=memory_folder()) as base:
        work = Path(base)

        def run(name: str, show: Callable[[Path], Figures]) -> None:
            folder = work / f"{len(found)}"
            folder.mkdir()
            found[name] = show(folder)
            shutil.rmtree(folder)

        for name in scenes:
            scene = SCENES[name]
            for how, action in DEATHS.items():
                twice = again if action is Action.DIE else 0
                run(f"{name}: killed {how}", partial(kill_at_every_step, scene, action, stride, twice))
            for persistent in (False, True):
                run(
                    f"{name}: failed {'from there on' if persistent else 'once'}",
                    partial(fail_at_every_step, scene, errno.EIO, persistent=persistent, stride=stride),
                )
        if kills:
            run("killed at random", partial(kill_at_random, kills))
    return found


def main() -> None:
    """Parse the arguments, play, print."""
    parser = argparse.ArgumentParser(prog="python -m tests.stress.crash", description=__doc__)
    parser.add_argument("--scenes", nargs="*", choices=SCENES, default=list(SCENES), metavar="NAME")
    parser.add_argument("--stride", type=int, default=1, help="steps from one interruption to the next")
    parser.add_argument("--again", type=int, default=3, help="kill the second try at every such step; 0: not")
    parser.add_argument("--kills", type=int, default=300, help="random kills of a longer build")
    arguments = parser.parse_args()
    syscalls.stand_between("tests.stress.crash")
    found = play(arguments.scenes, arguments.stride, arguments.again, arguments.kills)
    print(json.dumps({name: asdict(figures) for name, figures in found.items()}, indent=1))
    raise SystemExit(0 if all(figures.is_good for figures in found.values()) else 1)


if __name__ == "__main__":
    main()
