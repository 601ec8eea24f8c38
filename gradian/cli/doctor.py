"""`gradian doctor`."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator

import typer

from gradian import __version__
from gradian.model.backends.obstacles import PACKAGES, backend_obstacle
from gradian.supported import WINDOWS, installed_version

_EXTRAS = {
    "accelerate": ("train", "`gradian train`"),
    "sentence-transformers": ("cluster", "semantic clusters (TF-IDF is used instead)"),
    "gguf": ("demo", "`gradian demo`"),
    "kronfluence": ("ekfac", "the EK-FAC engine"),
}


def _packages() -> Iterator[str]:
    for name, window in WINDOWS.items():
        version = installed_version(name)
        if version is None:
            yield f"{name}: not installed; only {window.needed_for} needs it (supported: {window})"
        elif window.holds(version):
            yield f"{name} {version} (supported: {window})"
        else:
            yield f"WARNING {name} {version} is outside the supported window ({window})"
    for name, (extra, use) in _EXTRAS.items():
        version = installed_version(name)
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
    yield f"triton: {obstacle or installed_version('triton')}"
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


def _backends() -> Iterator[str]:
    for name in PACKAGES:
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
