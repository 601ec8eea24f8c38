"""The package as built: with and without a C++ compiler, and what is in it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

# An editable installation would lend its own extension to the package under test.
DOCTOR = """
import sys
sys.meta_path = [finder for finder in sys.meta_path if "Editable" not in getattr(finder, "__name__", "")]
from gradian.cli.main import run
sys.argv = ["gradian", "doctor"]
run()
"""


def build(base: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Build the package into `base` with a compiler that does not exist."""
    missing = {"CC": "/nonexistent/cc", "CXX": "/nonexistent/c++"}
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("GRADIAN_")}
    return subprocess.run(
        [sys.executable, "setup.py", "build", "--build-base", str(base), "--build-lib", str(base / "lib")],
        cwd=ROOT,
        env={**inherited, **missing, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_without_a_compiler_the_package_builds_whole_and_runs_on_its_references(tmp_path: Path) -> None:
    built = build(tmp_path)
    assert built.returncode == 0, built.stderr
    package = tmp_path / "lib" / "gradian"
    assert not list(package.glob("_native*.so"))
    assert (package / "_native.pyi").is_file()
    assert (package / "py.typed").is_file()
    assert (package / "kernels" / "__init__.py").is_file()
    assert not (tmp_path / "lib" / "kernels").exists()
    doctor = subprocess.run(
        [sys.executable, "-c", DOCTOR],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "lib")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert doctor.returncode == 0, doctor.stderr
    assert "compiled extension: gradian._native cannot be imported" in doctor.stdout
    assert "query_dots on cpu: reference" in doctor.stdout


def test_a_required_extension_that_cannot_be_built_is_an_error(tmp_path: Path) -> None:
    built = build(tmp_path, GRADIAN_REQUIRE_NATIVE="1")
    assert built.returncode != 0
    assert "/nonexistent/c++" in built.stderr + built.stdout
