"""Gradian: which training example, or which setting, broke a LoRA fine-tune."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["GradianError", "__version__", "analyze"]

if TYPE_CHECKING:
    from gradian.api import analyze
    from gradian.errors import GradianError


def __getattr__(name: str) -> Any:
    # Lazy, so that `gradian --help` and `gradian version` start without importing torch.
    if name == "analyze":
        from gradian.api import analyze

        return analyze
    if name == "GradianError":
        from gradian.errors import GradianError

        return GradianError
    raise AttributeError(f"module 'gradian' has no attribute {name!r}")
