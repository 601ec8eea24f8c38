"""What the oldest supported libraries do otherwise, for tests that cannot hold there."""

from __future__ import annotations

from importlib.metadata import version

import pytest

TRANSFORMERS_4 = version("transformers").startswith("4.")

SAVES_LORA_BIASES = pytest.mark.skipif(
    tuple(map(int, version("peft").split(".")[:2])) < (0, 19),
    reason="older PEFT leaves the biases of bias='lora_only' out of the file",
)
