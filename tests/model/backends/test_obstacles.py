from __future__ import annotations

import subprocess
import sys

import pytest

from gradian.model.backends import obstacles
from gradian.model.backends.base import training_backends
from gradian.model.backends.obstacles import PACKAGES, backend_obstacle, unavailable


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> dict[str, str | None]:
    """Installed versions by package, to be set by a test: everything that is asked for, on a machine with a GPU."""
    versions: dict[str, str | None] = {
        "torch": "2.10.0",
        "transformers": "4.57.6",
        "peft": "0.18.1",
        "datasets": "4.3.0",
        "trl": "0.24.0",
        "accelerate": "1.11.0",
        "unsloth": "2025.11.6",
        "unsloth_zoo": "2025.11.6",
    }
    monkeypatch.setattr("importlib.util.find_spec", lambda name: versions.get(name) and object())
    monkeypatch.setattr(obstacles, "installed_version", versions.get)
    monkeypatch.setattr(obstacles, "unmet_requirements", lambda name: iter(()))
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    return versions


@pytest.mark.parametrize("name", ["hf", "trl", "unsloth"])
def test_where_everything_is_there_a_backend_has_no_obstacle(
    name: str, machine: dict[str, str | None]
) -> None:
    assert backend_obstacle(name) is None
    assert unavailable(name) is None
    assert training_backends()[name].unavailable is None


@pytest.mark.parametrize(
    ("name", "change", "says"),
    [
        ("hf", {"accelerate": None}, 'not installed: accelerate; pip install "gradian-ml[train]"'),
        ("trl", {"trl": None}, 'not installed: trl; pip install "gradian-ml[train]"'),
        (
            "trl",
            {"trl": None, "datasets": None},
            'not installed: trl, datasets; pip install "gradian-ml[train]"',
        ),
        (
            "trl",
            {"trl": "1.99.0"},
            'outside its supported window: trl 1.99.0 (0.13 to 1.16); pip install "gradian-ml[train]"',
        ),
        (
            "unsloth",
            {"unsloth_zoo": None},
            "not installed: unsloth_zoo; pip install -c constraints/unsloth.txt unsloth unsloth_zoo",
        ),
        (
            "unsloth",
            {"trl": "1.0.0", "torch": "2.13.0"},
            "outside its supported window: torch 2.13.0 (2.4 to 2.11), trl 1.0.0 (0.24 and below); "
            "pip install -c constraints/unsloth.txt unsloth unsloth_zoo",
        ),
    ],
)
def test_an_obstacle_says_what_is_wrong_and_what_to_install(
    name: str, change: dict[str, str | None], says: str, machine: dict[str, str | None]
) -> None:
    machine.update(change)

    assert unavailable(name) == says


def test_without_a_cuda_device_unsloth_is_not_to_be_installed(
    machine: dict[str, str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.update(unsloth=None)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)

    says = "no CUDA device is visible; train with the backend hf, or on a machine with a GPU"
    assert unavailable("unsloth") == says


def test_a_trl_that_asks_for_another_transformers_is_an_obstacle(
    machine: dict[str, str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {"trl": ["transformers>=4.56.1 (4.51.3 is here)"]}
    monkeypatch.setattr(obstacles, "unmet_requirements", lambda name: iter(asked.get(name, [])))

    assert str(unavailable("trl")).startswith(
        "trl 0.24.0 asks for transformers>=4.56.1 (4.51.3 is here); pip install"
    )


def test_looking_for_obstacles_imports_no_trainer() -> None:
    code = """
import sys
from gradian.model.backends.obstacles import PACKAGES, backend_obstacle
for name in ("hf", "trl"):
    backend_obstacle(name)
assert not {"torch", "transformers", "trl", "unsloth", "datasets"} & set(sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_registered_backend_has_its_packages_listed() -> None:
    assert set(training_backends()) == set(PACKAGES)
