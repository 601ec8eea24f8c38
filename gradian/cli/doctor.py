"""`gradian doctor`."""

from __future__ import annotations


def doctor() -> None:
    """Check packages, devices, determinism, operations and training backends.

    \b
    Example:
      gradian doctor
    """
