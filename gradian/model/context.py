"""How many tokens a model can look at."""

from __future__ import annotations

from typing import Any


def context_length(model: Any) -> int | None:
    """Return how many tokens the model's positions reach, or None where the architecture sets no limit."""
    return configured_positions(model.config)


def configured_positions(config: Any) -> int | None:
    """Return what `context_length` does, of a model that is not loaded; `config` is transformers' configuration."""
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    value = getattr(text, "max_position_embeddings", None)
    return int(value) if value else None
