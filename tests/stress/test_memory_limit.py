"""The engines under a limit on address space, in a process of its own: a limit cannot be taken back."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

if sys.platform != "linux":
    pytest.skip("only Linux enforces RLIMIT_AS", allow_module_level=True)


def test_an_index_four_times_larger_than_what_may_be_mapped_is_scored_to_the_same_bits() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.stress.memory_limit", "--quick"],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert figures["same"]
    assert figures["index_bytes"] >= 4 * figures["headroom_bytes"]
    # Without a limit the block was mapped whole: the limit did make a difference.
    assert figures["mapped_without_limit_bytes"] > figures["headroom_bytes"]
