"""Builds the C++ extension `gradian._native` beside the package described in pyproject.toml.

Without a working compiler the package is installed without the extension and runs on its references;
`GRADIAN_REQUIRE_NATIVE=1` makes that an error, and warnings too. `GRADIAN_SANITIZE=1` builds for
AddressSanitizer and UndefinedBehaviorSanitizer.
"""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

import pybind11
from pybind11.setup_helpers import ParallelCompile
from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext

REQUIRED = os.environ.get("GRADIAN_REQUIRE_NATIVE", "") not in ("", "0")
SANITIZE = os.environ.get("GRADIAN_SANITIZE", "") not in ("", "0")

# One file an instruction set: everything else is built for any machine of the architecture.
ISA_FLAGS = {
    "_avx2.cpp": ["-mavx2", "-mfma", "-mf16c"],
    "_avx512.cpp": ["-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mfma", "-mf16c"],
}
# No contraction: whether a product and a sum are fused is written in the code, not left to the compiler.
FLAGS = ["-std=c++17", "-O3", "-fvisibility=hidden", "-ffp-contract=off", "-pthread"]
# As a system header: our warnings are about our code.
FLAGS += ["-isystem", pybind11.get_include()]
if REQUIRED:
    FLAGS += ["-Wall", "-Wextra", "-Wshadow", "-Wconversion", "-Werror"]
if SANITIZE:
    FLAGS += [
        "-O1",
        "-g",
        "-fno-omit-frame-pointer",
        "-fsanitize=address,undefined",
        "-fno-sanitize-recover=all",
    ]
LINK_FLAGS = ["-pthread", *(["-fsanitize=address,undefined"] if SANITIZE else [])]


def sources() -> list[str]:
    """Return the extension's files for this architecture."""
    found = sorted(path.as_posix() for path in Path("csrc").glob("*.cpp"))
    if platform.machine().lower() in ("x86_64", "amd64"):
        return found
    return [path for path in found if not path.endswith(tuple(ISA_FLAGS))]


def outdated(compiled: str, source: str) -> bool:
    """Whether a compiled file is missing or older than its source or than any header."""
    files = [Path(source), *Path("csrc").glob("*.h")]
    newest = max(file.stat().st_mtime for file in files)
    return not Path(compiled).exists() or Path(compiled).stat().st_mtime < newest


class BuildExtension(build_ext):
    """Adds each file's instruction set to its flags."""

    def build_extensions(self) -> None:
        """Compile and link."""
        compile_one = self.compiler._compile

        def compile_for_its_set(obj: str, src: str, ext: str, cc_args: Any, extra: Any, pp_opts: Any) -> None:
            chosen = [flag for suffix, flags in ISA_FLAGS.items() if src.endswith(suffix) for flag in flags]
            compile_one(obj, src, ext, cc_args, [*extra, *chosen], pp_opts)

        self.compiler._compile = compile_for_its_set
        super().build_extensions()


ParallelCompile(default=0, needs_recompile=outdated).install()
setup(
    # Not importable as `kernels`: transformers probes for another package of that name.
    packages=[*find_packages(include=["gradian*"]), "gradian.kernels"],
    package_dir={"gradian": "gradian", "gradian.kernels": "kernels/triton"},
    ext_modules=[
        Extension(
            "gradian._native",
            sources(),
            depends=sorted(path.as_posix() for path in Path("csrc").glob("*.h")),
            language="c++",
            extra_compile_args=FLAGS,
            extra_link_args=LINK_FLAGS,
            optional=not REQUIRED,
        )
    ],
    cmdclass={"build_ext": BuildExtension},
)
