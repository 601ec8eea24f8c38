"""A pytest plugin: the extension built for the sanitizers takes the place of the installed one.

    make sanitize

The build's folder is in GRADIAN_SANITIZED; without the sanitizers' runtime preloaded the import fails.
"""

from __future__ import annotations

import os
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

(_file,) = Path(os.environ["GRADIAN_SANITIZED"]).glob("gradian/_native*.so")
_spec = spec_from_file_location("gradian._native", _file)
assert _spec is not None
assert _spec.loader is not None
_native = module_from_spec(_spec)
_spec.loader.exec_module(_native)
sys.modules["gradian._native"] = _native


def pytest_report_header() -> str:
    """Say which build is tested."""
    return f"gradian._native: {_native.__file__}"
