"""A few of the interruptions of `tests.stress.interrupts`, in a process of its own: it forks."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from tests.stress.interrupts import QUICK, Ended, taken_apart


def test_a_signal_at_any_moment_is_answered_in_time_and_what_is_printed_makes_it_good() -> None:
    def ignoring() -> None:
        # As under `nohup` and in a script's background: the trials set their own.
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    done = subprocess.run(
        [sys.executable, "-m", "tests.stress.interrupts", "--quick"],
        capture_output=True,
        text=True,
        timeout=600,
        preexec_fn=ignoring,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = done.stdout.splitlines()[1:]
    assert [" ".join(row[:28].split()) for row in rows] == [
        f"{command} {moment}" for command, moment in QUICK
    ]


def test_a_trial_finds_fault_with_what_is_not_clean() -> None:
    from tests.stress.interrupts import faults

    clean = "gradian: interrupted by SIGINT\ngradian: this starts it again:\ngradian index\n"
    assert faults(Ended(0.5, 130, clean, 1.0), signal.SIGINT) == []
    for ended in (
        Ended(2.5, 130, clean, 1.0),
        Ended(0.5, 1, clean, 1.0),
        Ended(0.5, -2, "", 1.0),
        Ended(0.5, 130, "Traceback (most recent call last)\n" + clean, 1.0),
        Ended(0.5, 130, "\x1b[2J" + clean, 1.0),
    ):
        assert faults(ended, signal.SIGINT)


@pytest.mark.parametrize("line", ["gradian index --out 'a b'", "gradian index --out $'a\\033b'"])
def test_a_line_is_taken_apart_as_a_shell_does(line: str) -> None:
    assert taken_apart(line)[:3] == ["gradian", "index", "--out"]
