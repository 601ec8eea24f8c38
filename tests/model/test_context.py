from __future__ import annotations

from types import SimpleNamespace

from transformers import GPT2Config, LlamaConfig

from gradian.model.context import context_length


def test_it_is_what_the_models_positions_reach() -> None:
    for config in (LlamaConfig(max_position_embeddings=64), GPT2Config(n_positions=64)):
        assert context_length(SimpleNamespace(config=config)) == 64


def test_an_architecture_without_positions_has_no_limit() -> None:
    assert context_length(SimpleNamespace(config=SimpleNamespace())) is None
