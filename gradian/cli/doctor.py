"""`gradian doctor`."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version
from importlib.util import find_spec

import typer

from gradian import __version__


@dataclass(frozen=True)
class Window:
    """The versions of a package that Gradian supports; both ends belong to it.

    Attributes:
        lowest: first supported release, or None.
        highest: last supported release line ("2.13" covers 2.13.1), or None.
        needed_for: what does not work without the package; None where nothing does.
    """

    lowest: str | None
    highest: str | None
    needed_for: str | None = None

    def __str__(self) -> str:
        if self.lowest and self.highest:
            return f"{self.lowest} to {self.highest}"
        return f"{self.lowest} and above" if self.lowest else f"{self.highest} and below"

    def holds(self, version: str) -> bool:
        """Whether `version` lies in the window."""
        from packaging.version import Version

        installed = Version(version)
        if self.lowest and installed < Version(self.lowest):
            return False
        if not self.highest:
            return True
        last = Version(self.highest).release
        return installed.release[: len(last)] <= last


WINDOWS = {
    "torch": Window("2.4", "2.13"),
    "transformers": Window("4.51", "5.24"),
    "peft": Window("0.18", None),
    "trl": Window(None, "0.24", needed_for="`gradian train --backend trl`"),
}
"""The supported dependency window; `constraints/` holds exact pins inside it."""

_EXTRAS = {
    "accelerate": ("train", "`gradian train`"),
    "sentence-transformers": ("cluster", "semantic clusters (TF-IDF is used instead)"),
    "gguf": ("demo", "`gradian demo`"),
    "kronfluence": ("ekfac", "the EK-FAC engine"),
}
_BACKENDS = {
    "hf": ("transformers", "accelerate"),
    "trl": ("trl", "datasets", "accelerate"),
    "unsloth": ("unsloth", "unsloth_zoo"),
}


def _version(package: str) -> str | None:
    try:
        return installed_version(package)
    except PackageNotFoundError:
        return None


def _packages() -> Iterator[str]:
    for name, window in WINDOWS.items():
        version = _version(name)
        if version is None:
            yield f"{name}: not installed; only {window.needed_for} needs it (supported: {window})"
        elif window.holds(version):
            yield f"{name} {version} (supported: {window})"
        else:
            yield f"WARNING {name} {version} is outside the supported window ({window})"
    for name, (extra, use) in _EXTRAS.items():
        version = _version(name)
        missing = f"not installed; needed for {use}: pip install 'gradian-ml[{extra}]'"
        yield f"{name} {version}" if version else f"{name}: {missing}"


def _devices() -> Iterator[str]:
    import torch

    yield f"cpu: {platform.machine()}, {os.cpu_count()} cores visible"
    if torch.version.cuda is None:
        yield "cuda: not in this build of torch"
    elif not torch.cuda.is_available():
        yield f"cuda: torch is built for CUDA {torch.version.cuda}, but no device is visible"
    for number in range(torch.cuda.device_count()):
        device = torch.cuda.get_device_properties(number)
        memory = device.total_memory / 2**30
        yield f"cuda:{number}: {device.name}, sm_{device.major}{device.minor}, {memory:.1f} GiB"
    mps = "available when named (`device: mps`)" if torch.backends.mps.is_available() else "not available"
    yield f"mps: {mps}"
    yield f"`device: auto` takes {'cuda' if torch.cuda.is_available() else 'cpu'}"


def _operations() -> Iterator[str]:
    import torch

    from gradian.ops._dispatch import (
        ENVIRONMENT_VARIABLE,
        decision_table,
        instruction_sets,
        missing_backend,
    )

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    yield f"{ENVIRONMENT_VARIABLE}: {os.environ.get(ENVIRONMENT_VARIABLE, 'not set, so auto')}"
    obstacle = missing_backend("native")
    if obstacle is None:
        best, *others = instruction_sets()
        yield f"compiled extension: runs on {best} (also here: {', '.join(others) or 'nothing else'})"
    else:
        yield f"compiled extension: {obstacle}; scoring is slower. Install again where a C++17 compiler is"
    obstacle = missing_backend("triton")
    yield f"triton: {obstacle or _version('triton')}"
    for decision in decision_table(device):
        yield f"{decision.op} on {decision.device}: {decision.backend}"
        for backend, reason in decision.reasons.items():
            yield f"  not {backend}: {reason}"


def _determinism() -> Iterator[str]:
    import torch

    yield f"seed: {_default_seed()} unless the config says otherwise; part of every index id"
    yield "model: eval mode, dropout off, attention `eager` unless the config says otherwise"
    yield f"torch threads: {torch.get_num_threads()}"
    yield f"float32 matrix products: {torch.get_float32_matmul_precision()} precision"
    yield f"cudnn.benchmark: {'on' if torch.backends.cudnn.benchmark else 'off'}"
    yield f"CUBLAS_WORKSPACE_CONFIG: {os.environ.get('CUBLAS_WORKSPACE_CONFIG', 'not set')}"


def _default_seed() -> int:
    from gradian.config import Config

    return Config().seed


def backend_obstacle(name: str) -> str | None:
    """Return why the training backend `name` cannot run here, or None where it can.

    Nothing of the backend is imported: unsloth changes transformers for the whole process.
    """
    if find_spec(f"gradian.model.backends.{name}") is None:
        return "this version of Gradian does not have it yet"
    missing = [package for package in _BACKENDS[name] if _version(package) is None]
    if missing:
        return f"not installed: {', '.join(missing)}"
    window = WINDOWS.get(name)
    version = _version(name)
    if window and version and not window.holds(version):
        return f"{name} {version} is outside the supported window ({window})"
    if name == "unsloth":
        import torch

        if not torch.cuda.is_available():
            return "no CUDA device is visible"
    return None


def _backends() -> Iterator[str]:
    for name in _BACKENDS:
        obstacle = backend_obstacle(name)
        yield f"{name}: available" if obstacle is None else f"{name}: not available, {obstacle}"


def doctor() -> None:
    """Check packages, devices, determinism, operations and training backends.

    Versions outside the supported window are warned about; the exit code stays 0.

    \b
    Example:
      gradian doctor
    """
    typer.echo(f"gradian {__version__}, Python {platform.python_version()}, {platform.platform()}")
    typer.echo(f"installed in {sys.prefix}")
    for title, lines in (
        ("Packages", _packages()),
        ("Devices", _devices()),
        ("Determinism", _determinism()),
        ("Operations", _operations()),
        ("Training backends", _backends()),
    ):
        typer.echo(f"\n{title}")
        for line in lines:
            typer.echo(f"  {line}")
