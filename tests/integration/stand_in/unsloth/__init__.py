"""Stands in for unsloth on machines without a GPU: names, signatures and side effects are those of its releases.

What counts here is what it does to the process, which is written after `unsloth/models/llama.py` of 2025.11.6 and
2026.10.9. Its arithmetic is plain torch.
"""

from __future__ import annotations

from .models.llama import FastLlamaModel as FastLanguageModel

__version__ = "0.0.0+stand.in"
__all__ = ["FastLanguageModel"]
