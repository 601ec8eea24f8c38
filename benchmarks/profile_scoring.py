"""The compiled passes of scoring by themselves, for tools that count or sample instructions.

    valgrind --tool=callgrind --collect-atstart=no --toggle-collect='pybind11::cpp_function::dispatcher*' \
      python benchmarks/profile_scoring.py --dtype float16 --queries 1
    callgrind_annotate callgrind.out.*

Rows in memory are read once for the dot products, and once for the first pass of DataInf. torch is not imported:
under valgrind that takes minutes. What is printed turns counts into instructions a byte and a product.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np

from gradian import _native


def main(argv: list[str] | None = None) -> int:
    """Run both passes; return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dtype", choices=["float32", "float16"], default="float16")
    parser.add_argument("--queries", type=int, default=1)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--columns", type=int, default=65_536)
    parser.add_argument("--repeats", type=int, default=1, help="for tools that sample")
    options = parser.parse_args(argv)
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((options.rows, options.columns), dtype=np.float32).astype(options.dtype)
    queries = rng.standard_normal((options.queries, options.columns), dtype=np.float32)
    for _ in range(options.repeats):
        _native.query_dots([rows], options.dtype, queries, 1)
        _native.datainf_accumulate([rows], options.dtype, queries, np.ones(options.rows), 1)
    products = rows.size * options.queries
    print(
        f"{options.repeats} x {rows.nbytes:,} bytes of {options.dtype}, {options.queries} queries: "
        f"query_dots {products:,} products, datainf_accumulate {2 * products:,}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
