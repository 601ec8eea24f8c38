"""Imports go only downwards through the levels of the design, and never in a circle."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "gradian"

LEVELS = {
    "errors": 0,
    "types": 0,
    "registry": 0,
    "jsonvalue": 0,
    "progress": 0,
    "shell": 0,
    "address_space": 0,
    "plainfile": 0,
    "supported": 0,
    "config": 0,
    "ops": 1,
    "data": 1,
    "store": 1,
    "runs": 1,
    "model": 2,
    "grads": 2,
    "engines": 3,
    "query": 4,
    "evaluation": 5,
    "clustering": 5,
    "checks": 5,
    "report": 6,
    "session": 7,
    "attribution": 7,
    "explanation": 7,
    "diagnosis": 7,
    "removal": 7,
    "verification": 7,
    "api": 7,
    "cli": 7,
    "demo": 7,
}
# `gradian/__init__.py` offers the API lazily, so it stands above everything; its version is a plain constant.
ROOT = "(gradian)"
ROOT_CONSTANTS = {"__version__"}


def unit_of(file: Path, package: Path) -> str:
    """The part of the package that a file belongs to: the name under `gradian`."""
    first = file.relative_to(package).parts[0]
    return ROOT if first == "__init__.py" else first.removesuffix(".py")


def imported_units(source: str, file: Path, package: Path) -> Iterator[tuple[str, int]]:
    """Every `gradian` unit that a module imports, at any depth of nesting, with the line."""
    folder = file.parent.relative_to(package.parent).parts
    for node in ast.walk(ast.parse(source)):
        modules: list[str] = []
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = folder[: len(folder) - node.level + 1] if node.level else ()
            stem = ".".join((*base, *([node.module] if node.module else [])))
            modules = [f"{stem}.{alias.name}" for alias in node.names]
        for module in modules:
            parts = module.split(".")
            if parts[0] != "gradian":
                continue
            if len(parts) == 1 or parts[1] in ROOT_CONSTANTS:
                continue
            yield parts[1], node.lineno


def violations(package: Path) -> list[str]:
    """What is wrong with the imports of a package tree; empty when nothing is."""
    problems = []
    graph: dict[str, set[str]] = {}
    for file in sorted(package.rglob("*.py")):
        unit = unit_of(file, package)
        where = file.relative_to(package.parent)
        if unit not in LEVELS and unit != ROOT:
            problems.append(f"{where}: {unit!r} has no level in tests/test_layering.py")
            continue
        for target, line in imported_units(file.read_text(encoding="utf-8"), file, package):
            if unit in (target, ROOT):
                continue
            if target.startswith("_") or target == "kernels":
                # `gradian._native` and `gradian.kernels` are built, and have one way in.
                if where.as_posix() != "gradian/ops/_dispatch.py":
                    problems.append(f"{where}:{line}: only gradian/ops/_dispatch.py imports {target}")
                continue
            if target not in LEVELS:
                problems.append(f"{where}:{line}: imports {target!r}, which has no level")
                continue
            if LEVELS[target] > LEVELS[unit]:
                problems.append(f"{where}:{line}: L{LEVELS[unit]} {unit} imports L{LEVELS[target]} {target}")
            graph.setdefault(unit, set()).add(target)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        problems.append(f"a circle of imports: {' -> '.join(error.args[1])}")
    return problems


def test_imports_go_only_downwards() -> None:
    assert violations(PACKAGE) == []


@pytest.mark.parametrize(
    ("files", "complaint"),
    [
        ({"store/a.py": "import gradian.report.model"}, "L1 store imports L6 report"),
        ({"store/a.py": "def f():\n    from ..engines import base"}, "L1 store imports L3 engines"),
        ({"store/a.py": "from gradian import cli"}, "L1 store imports L7 cli"),
        ({"odd/a.py": ""}, "has no level"),
        ({"data/a.py": "import gradian.store.b", "store/b.py": "import gradian.data.a"}, "a circle"),
        ({"data/a.py": "import gradian._native"}, "only gradian/ops/_dispatch.py"),
    ],
)
def test_a_wrong_import_is_found(tmp_path: Path, files: dict[str, str], complaint: str) -> None:
    for name, source in files.items():
        file = tmp_path / "gradian" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(source, encoding="utf-8")
    (problem,) = violations(tmp_path / "gradian")
    assert complaint in problem


def test_a_downward_import_is_no_violation(tmp_path: Path) -> None:
    file = tmp_path / "gradian" / "cli" / "a.py"
    file.parent.mkdir(parents=True)
    file.write_text("import torch\nfrom gradian import __version__\nfrom gradian.store import reader")
    assert violations(tmp_path / "gradian") == []
