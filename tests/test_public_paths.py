"""Paths and names that published documentation gives, and so must exist."""

from __future__ import annotations

import ast
import importlib
from importlib.metadata import entry_points, metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def later(what: str) -> pytest.ParameterSet:
    """A path that a later issue brings: strict, so that the mark goes when the path comes."""
    return pytest.param(what, marks=pytest.mark.xfail(strict=True, reason="a later issue brings it"))


OBJECTS = [
    "gradian.analyze",
    "gradian.diagnose",
    "gradian.query.scorer.rank_correlation",
    "gradian.grads.loss.per_example_ce",
    "gradian.query.spans.explain_example",
    "gradian.query.spans.score_example_spans",
    "gradian.model.backends.unsloth.UnslothBackend",
    "gradian.model.backends.unsloth.prepare_for_gradients",
    "gradian.model.backends.unsloth.unsloth_compat_report",
    "gradian.model.backends.unsloth._restore_modeling_forwards",
]
FILES = [
    "constraints/unsloth.txt",
    "tests/integration/test_unsloth_contract.py",
    "experiments/gpu/run_gpu_suite.py",
]


@pytest.mark.parametrize("path", OBJECTS)
def test_a_published_name_is_importable_and_callable(path: str) -> None:
    module, _, name = path.rpartition(".")
    assert callable(getattr(importlib.import_module(module), name))


@pytest.mark.parametrize("path", FILES)
def test_a_published_file_exists(path: str) -> None:
    assert (ROOT / path).is_file()


def test_the_run_artifact_is_written_under_its_published_name() -> None:
    constants = {
        node.value
        for file in (ROOT / "gradian").rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant)
    }
    assert "gradian_run.json" in constants


def test_the_distribution_is_gradian_ml_and_its_command_is_gradian() -> None:
    assert metadata("gradian-ml")["Name"] == "gradian-ml"
    (script,) = entry_points(group="console_scripts", name="gradian")
    assert script.value == "gradian.cli.main:run"
    assert callable(script.load())


def test_the_documented_extras_exist() -> None:
    extras = metadata("gradian-ml").get_all("Provides-Extra") or []
    assert set(extras) == {"train", "cluster", "unsloth", "ekfac", "demo", "dev"}
