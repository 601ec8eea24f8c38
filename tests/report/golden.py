"""Golden files: `GRADIAN_UPDATE_GOLDEN=1 pytest tests/report` writes them anew, for a person to read and commit."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def assert_golden(text: str, name: str) -> None:
    """Compare `text` with the file `name` under the repository root."""
    path = ROOT / name
    if os.environ.get("GRADIAN_UPDATE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="\n")
    assert text == path.read_text(encoding="utf-8")
