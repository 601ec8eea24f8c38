from __future__ import annotations

import json
import re
import time
import warnings
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gradian.model.name_patterns import name_pattern

UNSLOTH = json.loads(
    (
        Path(__file__).parents[1]
        / "fixtures"
        / "cases"
        / "35-unsloth-4bit-base"
        / "adapter"
        / "adapter_config.json"
    ).read_text()
)["target_modules"]
NAMES = (
    "model.layers.0.self_attn.q_proj",
    "model.layers.11.mlp.gate_proj",
    "model.language_model.layers.3.mlp.down_proj",
    "model.visual.blocks.0.attn.qkv",
    "lm_head",
    "model.embed_tokens",
    "",
)
_ONE = st.sampled_from(["a", "b", ".", r"\.", r"\d", "[ab]", "[^a]", r"[\d]", r"\b", "^", "$", "_", "1"])
_REPEAT = st.sampled_from(["", "", "*", "+", "?", "*?", "+?", "{2}", "{1,}", "{0,2}", "{0}", "{1,3}?"])
_ITEM = st.tuples(_ONE, _REPEAT).map("".join)


def _grown(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    group = st.tuples(inner, _REPEAT).map(lambda parts: f"({parts[0]}){parts[1]}")
    either = st.tuples(inner, inner).map("|".join)
    return st.lists(st.one_of(_ITEM, group, either), max_size=4).map("".join)


@pytest.mark.parametrize(
    "text",
    [
        UNSLOTH,
        r".*\.(q_proj|v_proj)$",
        r"model\.layers\.\d+\.(self_attn|mlp)\..+",
        r"^(?:.*\.)?lm_head",
        r"[\w.]+_proj",
        "",
    ],
)
def test_an_expression_that_trainers_write_matches_what_it_does_in_python(text: str) -> None:
    pattern = name_pattern(text)
    assert pattern is not None
    assert [pattern.fullmatch(name) for name in NAMES] == [bool(re.fullmatch(text, name)) for name in NAMES]


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.recursive(_ITEM, _grown, max_leaves=8), st.lists(st.text(alphabet="ab.1_", max_size=7), max_size=6))
def test_any_expression_matches_what_it_does_in_python(text: str, names: list[str]) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            known = re.compile(text)
    except re.error:
        return
    pattern = name_pattern(text)
    if pattern is not None:
        assert [pattern.fullmatch(name) for name in names] == [bool(known.fullmatch(name)) for name in names]


@pytest.mark.parametrize(
    "text", ["(.|.|.)*zz", "(a*)*b", "((((.*)*)*)*)*zz", r"(\w|\d|.)*\b(\w|.)*z", ".*.*.*.*.*.*.*z"]
)
def test_an_expression_made_to_exhaust_costs_no_time(text: str) -> None:
    start = time.process_time()
    pattern = name_pattern(text)
    assert pattern is not None
    assert not any(pattern.fullmatch("model.layers.0.self_attn.q_proj" * n) for n in range(1, 30))
    assert time.process_time() - start < 1


@pytest.mark.parametrize(
    "text",
    [
        *("(?=a)b", "(?!a)b", r"(a)\1", "(?P<a>b)", "(?i)a", "a++", "(", "a)", "*a", "["),
        *("(" * 99 + ")" * 99, "(.{0,30}){0,30}z", "a" * 5_000),
    ],
)
def test_what_is_not_understood_or_very_large_is_no_pattern(text: str) -> None:
    assert name_pattern(text) is None
