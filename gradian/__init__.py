"""Gradian: which training example, or which setting, broke a LoRA fine-tune."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["GradianError", "__version__", "analyze", "diagnose"]

if TYPE_CHECKING:
    from gradian.api import analyze, diagnose
    from gradian.errors import GradianError


def __getattr__(name: str) -> Any:
    # Lazy, so that `gradian --help` and `gradian version` start without importing torch.
    if name in ("analyze", "diagnose"):
        from gradian import api

        return getattr(api, name)
    if name == "GradianError":
        from gradian.errors import GradianError

        return GradianError
    raise AttributeError(f"module 'gradian' has no attribute {name!r}")
