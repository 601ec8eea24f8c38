"""When the power fails, nothing half is taken for whole, and what was flushed is not computed again."""

from __future__ import annotations

import random
from pathlib import Path

from tests.stress.playing import faults_of, needs_syscalls, play
from tests.stress.simulated_disk import SimulatedDisk
from tests.stress.syscalls import Operation


def _states(tmp_path: Path, *operations: Operation, split_renames: bool = False) -> set[tuple[object, ...]]:
    disk = SimulatedDisk(tmp_path, split_renames=split_renames)
    for operation in operations:
        disk.follow(operation)
    return {tuple(sorted(tree.items())) for tree in disk.states(random.Random(0), 20)}


def test_the_disk_keeps_what_was_flushed_and_may_lose_or_tear_the_rest(tmp_path: Path) -> None:
    file = f"{tmp_path}/a"
    create = Operation("C", False, 0, 0, file, "", b"")
    write = Operation("W", False, 0, 2, file, "", b"xy")
    flush, flush_name = (Operation("S", False, 0, 0, path, "", b"") for path in (file, str(tmp_path)))
    rename = Operation("R", False, 0, 0, file, f"{tmp_path}/b", b"")

    # A flushed file without a flushed name may be gone; a flushed name without a flushed file may hold anything.
    assert _states(tmp_path, create, write, flush) == {(), (("a", b"xy"),)}
    assert {(("a", b""),), (("a", b"xy"),), (("a", b"\0\0"),)} <= _states(tmp_path, create, flush_name, write)
    assert () not in _states(tmp_path, create, flush_name, write)
    assert _states(tmp_path, create, write, flush, flush_name) == {(("a", b"xy"),)}
    whole = (create, write, flush, flush_name, rename)
    assert _states(tmp_path, *whole) == {(("a", b"xy"),), (("b", b"xy"),)}
    assert {(), (("a", b"xy"), ("b", b"xy"))} <= _states(tmp_path, *whole, split_renames=True)
    assert _states(tmp_path, *whole, flush_name) == {(("b", b"xy"),)}
    # What a failed flush was to save, a later one does not.
    failed = Operation("S", True, 0, 0, file, "", b"")
    assert _states(tmp_path, create, flush_name, write, failed, flush) == {(("a", b""),)}


@needs_syscalls
def test_no_state_that_a_lost_power_leaves_is_a_whole_index_that_is_not_one() -> None:
    scenes = ("build", "gram", "report")
    found = play("power_loss", "--scenes", *scenes, "--draws", "0", "--stride", "60", "--atomic-renames")
    for name, figures in found.items():
        assert not faults_of(figures), name
        assert figures["states"] > 15, name
    assert found["build"]["states"] > 150
