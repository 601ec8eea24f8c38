"""A disk without space, without quota or broken is a typed error, and the build goes on when it is mended."""

from __future__ import annotations

from tests.stress.playing import faults_of, needs_syscalls, play

pytestmark = needs_syscalls


def test_a_full_or_broken_disk_at_any_step_is_a_typed_error_and_the_build_resumes() -> None:
    found = play("disk_faults", "--scenes", "build", "gram", "report", "--stride", "17", "--step", "40960")
    assert len(found) >= 3 * 7 + 1
    for name, figures in found.items():
        assert not faults_of(figures), name
        assert figures.get("interruptions", 1) > 0, name
        assert figures.get("refused", 1) > 0, name


def test_a_command_on_a_failing_disk_ends_with_a_message_and_works_when_it_is_run_again() -> None:
    found = play("cli_faults", "--commands", "init-config", "diagnose", "--tries", "6")
    for name, figures in found.items():
        assert not faults_of(figures), name
        assert figures["refused"] >= 5, name
