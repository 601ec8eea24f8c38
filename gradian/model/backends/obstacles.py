"""Why a training backend cannot run here, found without importing it: unsloth changes transformers for the process.

Its own module without torch, so that `gradian doctor` and the backends say the same.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass

from gradian.supported import UNSLOTH_WINDOWS, WINDOWS, Window, installed_version, unmet_requirements

INSTALL_TRAIN = 'pip install "gradian-ml[train]"'
INSTALL_UNSLOTH = "pip install -c constraints/unsloth.txt unsloth unsloth_zoo"
PACKAGES: Mapping[str, tuple[str, ...]] = {
    "hf": ("accelerate",),
    "trl": ("trl", "datasets", "accelerate"),
    "unsloth": ("unsloth", "unsloth_zoo", "accelerate"),
}
"""What each backend imports beyond torch, transformers and peft."""


@dataclass(frozen=True)
class Obstacle:
    """Why a backend cannot run, and what to do about it."""

    reason: str
    fix: str

    def __str__(self) -> str:
        return f"{self.reason}; {self.fix}"


def backend_obstacle(name: str) -> Obstacle | None:
    """Return why the training backend `name` cannot run here, or None where it can."""
    if name == "unsloth" and not _sees_cuda():
        # Before what is missing: without a GPU it cannot even be imported.
        return Obstacle("no CUDA device is visible", "train with the backend hf, or on a machine with a GPU")
    install = INSTALL_UNSLOTH if name == "unsloth" else INSTALL_TRAIN
    missing = [package for package in PACKAGES[name] if importlib.util.find_spec(package) is None]
    if missing:
        return Obstacle(f"not installed: {', '.join(missing)}", install)
    windows = {"unsloth": UNSLOTH_WINDOWS, "trl": {"trl": WINDOWS["trl"]}}.get(name, {})
    outside = [text for package, window in windows.items() if (text := _outside(package, window))]
    if outside:
        return Obstacle(f"outside its supported window: {', '.join(outside)}", install)
    unmet = list(unmet_requirements(name)) if windows else []
    if unmet:
        return Obstacle(f"{name} {installed_version(name)} asks for {', '.join(unmet)}", install)
    return None


def unavailable(name: str) -> str | None:
    """Return `backend_obstacle` as one line, or None."""
    obstacle = backend_obstacle(name)
    return None if obstacle is None else str(obstacle)


def _outside(package: str, window: Window) -> str | None:
    version = installed_version(package)
    return None if version is None or window.holds(version) else f"{package} {version} ({window})"


def _sees_cuda() -> bool:
    import torch

    return torch.cuda.is_available()
