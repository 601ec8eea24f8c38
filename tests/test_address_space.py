"""What is left of a limited address space; a limit cannot be taken back, so in processes of their own."""

from __future__ import annotations

import errno
import subprocess
import sys

import pytest

from gradian.address_space import address_space_left, is_out_of_memory, share_of_what_is_left

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux enforces these limits")

CODE = """
import mmap, resource
from gradian.address_space import address_space_left, share_of_what_is_left
resource.setrlimit(resource.RLIMIT_{name}, (1 << 30, 1 << 30))
before = address_space_left()
assert 0 < before < 1 << 30
assert share_of_what_is_left(1 << 40) == address_space_left() // 8
area = mmap.mmap(-1, 200 << 20, flags=mmap.MAP_PRIVATE)
assert before - address_space_left() >= 200 << 20
resource.setrlimit(resource.RLIMIT_{name}, (1 << 20, 1 << 20))
assert address_space_left() == 0
"""


@pytest.mark.parametrize("name", ["AS", "DATA"])
def test_what_is_mapped_is_taken_from_what_is_left(name: str) -> None:
    code = CODE.replace("{name}", name)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_without_a_limit_there_is_no_telling() -> None:
    assert address_space_left() is None
    assert share_of_what_is_left(7) == 7


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError(), True),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), True),
        (OSError(errno.ENOENT, "Cannot allocate memory"), False),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), True),
        (RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"), True),
        (RuntimeError("a bug"), False),
        (ImportError("libx.so: failed to map segment from shared object"), True),
        (ImportError("libx.so: cannot open shared object file"), False),
    ],
)
def test_a_lack_of_memory_is_known_in_whosever_words(error: Exception, expected: bool) -> None:
    assert is_out_of_memory(error) == expected
