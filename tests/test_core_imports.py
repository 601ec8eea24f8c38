"""The core stands on torch, transformers and peft alone, and light commands start without torch."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import gradian

PACKAGE = Path(gradian.__file__).parent
RUN = Path(__file__).parent / "fixtures" / "runs" / "trl0-transformers4"
TRAINERS = ("trl", "unsloth", "bitsandbytes", "xformers")
BACKENDS = {PACKAGE / "model" / "backends" / f"{name}.py" for name in ("trl", "unsloth")}


def run_python(code: str, *arguments: str, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = dict(os.environ)
    if path is not None:
        environment["PYTHONPATH"] = str(path)
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        env=environment,
        timeout=120,
        check=False,
    )


def imported_names(file: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.split(".")[0])
    return names


def test_only_its_own_backend_names_a_trainer_library() -> None:
    offenders = {
        file.relative_to(PACKAGE).as_posix(): sorted(imported_names(file) & set(TRAINERS))
        for file in PACKAGE.rglob("*.py")
        if file not in BACKENDS and imported_names(file) & set(TRAINERS)
    }
    assert offenders == {}


def test_the_core_with_what_it_loads_never_imports_a_trainer_library(tmp_path: Path) -> None:
    # Packages of these names that note being imported, because an import of one that is absent may be
    # swallowed. Not bitsandbytes: peft would import it by itself where one is found.
    for name in ("trl", "unsloth", "xformers"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"print('imported {name}')\n", encoding="utf-8")
    code = """
import importlib, pkgutil, sys
import gradian
from peft import PeftModel
from transformers import AutoModelForCausalLM, Trainer
skipped = ("gradian.model.backends.trl", "gradian.model.backends.unsloth", "gradian.kernels")
for module in pkgutil.walk_packages(gradian.__path__, "gradian."):
    if not module.name.startswith(skipped) and not module.name.endswith("__main__"):
        importlib.import_module(module.name)
print("loaded:", *sorted(set(sys.modules) & {"bitsandbytes", "xformers", "trl", "unsloth"}))
"""
    done = run_python(code, path=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["loaded:"]


TORCH_FREE = """
import sys
from gradian.cli.main import run
sys.argv = ["gradian", *sys.argv[1:]]
try:
    run()
except SystemExit as exit:
    assert exit.code in (0, None), exit.code
assert "torch" not in sys.modules and "transformers" not in sys.modules
"""


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["attribute", "--help"],
        ["version"],
        ["init-config", "--out", "{tmp}/gradian.yaml"],
        ["checks"],
        ["diagnose", "--dataset", "{tmp}/train.jsonl", "--run", "{run}", "--out", "{tmp}/out"],
    ],
    ids=["help", "command help", "version", "init-config", "checks", "diagnose"],
)
def test_a_light_command_never_imports_torch(tmp_path: Path, arguments: list[str]) -> None:
    (tmp_path / "train.jsonl").write_text('{"prompt": "a", "completion": "b"}\n', encoding="utf-8")
    arguments = [argument.replace("{run}", str(RUN)) for argument in arguments]
    done = run_python(TORCH_FREE, *(argument.replace("{tmp}", str(tmp_path)) for argument in arguments))
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_the_light_layers_never_import_torch() -> None:
    code = """
import importlib, pkgutil, sys
import gradian
light = ("config", "data", "store", "runs", "report", "checks", "cli")
for name in ("errors", "types", "registry", "progress", *light):
    module = importlib.import_module(f"gradian.{name}")
    if name in light:
        for child in pkgutil.walk_packages(module.__path__, f"gradian.{name}."):
            importlib.import_module(child.name)
            assert "torch" not in sys.modules, child.name
assert "torch" not in sys.modules
"""
    done = run_python(code)
    assert done.returncode == 0, done.stderr
