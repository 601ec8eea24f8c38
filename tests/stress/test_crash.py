"""Work that is interrupted at any step leaves nothing half, and ends in the same bytes when it is done again."""

from __future__ import annotations

import pytest

from tests.stress.playing import faults_of, needs_syscalls, play

pytestmark = needs_syscalls


@pytest.mark.parametrize("ops", ["native", "reference"])
def test_a_build_killed_or_failed_at_any_step_resumes_to_the_same_bytes_for_one_chunk_at_most(
    ops: str,
) -> None:
    scenes = ("build", "resume") if ops == "native" else ("build",)
    found = play("crash", "--scenes", *scenes, "--stride", "17", "--again", "37", "--kills", "0", ops=ops)
    assert len(found) == 5 * len(scenes)
    for name, figures in found.items():
        assert not faults_of(figures), name
        assert figures["interruptions"] >= figures["steps"] // 17 > 1, name
        assert figures["recomputed"] <= 1, name


def test_gram_matrices_and_reports_interrupted_at_any_step_are_whole_or_not_there() -> None:
    found = play("crash", "--scenes", "gram", "report", "--stride", "5", "--again", "0", "--kills", "0")
    assert len(found) == 10
    for name, figures in found.items():
        assert not faults_of(figures), name
        assert figures["interruptions"] > 1, name


def test_a_longer_build_killed_at_any_moment_resumes_to_the_same_bytes() -> None:
    (figures,) = play("crash", "--scenes", "--stride", "1", "--kills", "4").values()
    assert figures["interruptions"] >= 4
    assert not faults_of(figures)
    assert figures["recomputed"] <= 1
