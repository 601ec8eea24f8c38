"""Where the system gives fewer threads than asked for, those that there are do the work, to the same bits."""

from __future__ import annotations

import subprocess
import sys

import pytest

CODE = """
import os, resource
import numpy as np
from gradian import _native
rng = np.random.default_rng(0)
rows = [rng.standard_normal((400, 512), dtype=np.float32).astype(np.float16)]
queries = rng.standard_normal((3, 512), dtype=np.float32)
scores, clusters = rng.standard_normal((400, 200)), rng.integers(0, 5, 400)
def score(threads):
    totals = np.zeros((5, 200))
    _native.add_cluster_sums(totals, scores, clusters, threads)
    found = [
        _native.query_dots(rows, "float16", queries, threads),
        *_native.datainf_accumulate(rows, "float16", queries, np.ones(400), threads),
        _native.gram(rows, "float16", 512, threads),
        totals,
    ]
    return [np.asarray(part).tobytes() for part in found]
alone, some = score(1), score({before})
assert alone == some
threads = len(os.listdir("/proc/self/task"))
resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
if os.getuid() == 0:  # whom the limit does not bind
    os.setgid(65534)
    os.setuid(65534)
assert score(16) == alone
assert len(os.listdir("/proc/self/task")) == threads
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits the threads of a process")
@pytest.mark.parametrize("before", [1, 3])
def test_where_the_system_gives_no_more_threads_those_that_are_there_do_it(before: int) -> None:
    code = CODE.replace("{before}", str(before))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
