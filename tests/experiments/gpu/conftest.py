"""The suite's modules are beside its script, as running it finds them."""

from __future__ import annotations

import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[3] / "experiments" / "gpu"
sys.path.insert(0, str(FOLDER))
