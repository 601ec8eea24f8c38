"""Processes that build one index at once make one index; a cache that cannot be written serves and refuses."""

from __future__ import annotations

from tests.stress.concurrency import STATES
from tests.stress.playing import faults_of, needs_syscalls, play

pytestmark = needs_syscalls


def test_eight_processes_make_one_index_whatever_their_locks_do() -> None:
    found = play("concurrency", "--runs", "3", "--other-runs", "1", "--scenes", "build", "--no-read-only")
    assert found["build, locks that do nothing"]["runs"] == 3
    assert sum(figures["killed"] for figures in found.values()) > 3
    for name, figures in found.items():
        assert not faults_of(figures), name


def test_a_cache_that_cannot_be_written_serves_what_is_whole_and_refuses_the_rest() -> None:
    (figures,) = play("concurrency", "--runs", "0", "--other-runs", "0").values()
    assert not faults_of(figures)
    assert "whole" in figures["served"]
    assert set(STATES) == {
        name.removesuffix(", mounted") for name in (*figures["served"], *figures["refused"])
    }
