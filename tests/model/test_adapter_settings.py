from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gradian.errors import AdapterError
from gradian.model.adapter_settings import check_ranks, check_settings, plain_keys

FIXTURES = Path(__file__).parents[1] / "fixtures"
CONFIG = Path("adapter_config.json")


@pytest.mark.parametrize(
    "path", sorted(FIXTURES.rglob("adapter_config.json")), ids=lambda path: str(path.relative_to(FIXTURES))
)
def test_the_settings_that_trainers_saved_are_all_such_values(path: Path) -> None:
    check_settings(json.loads(path.read_text()), path)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("r", 0),
        ("r", True),
        ("r", 100_000_000),
        ("r", "8"),
        ("lora_alpha", "x"),
        ("lora_alpha", float("nan")),
        ("lora_alpha", None),
        ("lora_alpha", 10**400),
        ("lora_dropout", -3),
        ("bias", []),
        ("target_modules", 5),
        ("target_modules", [1, None]),
        ("target_modules", "("),
        ("target_modules", "(" * 10_000),
        ("target_modules", "a" * 20_000),
        ("exclude_modules", {"a": 1}),
        ("modules_to_save", [5]),
        ("modules_to_save", ["(.|.|.)*zz"]),
        ("modules_to_save", "lm_head"),
        ("layers_pattern", ["(.|.|.)*zz"]),
        ("layers_to_transform", "x"),
        ("layer_replication", [[0, 1_000_000_000]]),
        ("rank_pattern", [1]),
        ("rank_pattern", {"(": 4}),
        ("rank_pattern", {"a)(?=(.|.)*z": 4}),
        ("rank_pattern", {"q_proj": 0}),
        ("alpha_pattern", {"q_proj": "x"}),
        ("init_lora_weights", 5),
        ("use_dora", "false"),
        ("base_model_name_or_path", ["a"]),
    ],
)
def test_a_value_that_a_setting_cannot_have_is_an_error_that_names_file_and_key(key: str, value: Any) -> None:
    with pytest.raises(AdapterError) as caught:
        check_settings({key: value}, CONFIG)
    error = caught.value
    assert error.where == f"adapter_config.json: {key}"
    assert 0 < len(error.found or "") < 100
    assert None not in (error.expected, error.fix)


def test_a_rank_above_each_side_of_each_tensor_is_refused_before_memory_is_asked_for() -> None:
    check_ranks({"r": 64}, [(64, 16), (16, 64)], CONFIG)
    check_ranks({"r": 64}, [], CONFIG)
    for raw, key in (({"r": 65}, "r"), ({"r": 2, "rank_pattern": {"q_proj": 65}}, "rank_pattern")):
        with pytest.raises(AdapterError, match=f"adapter_config.json: {key}: the rank is not") as caught:
            check_ranks(raw, [(64, 16), (16, 64)], CONFIG)
        assert "no more than 64" in str(caught.value)


def test_an_expression_for_a_key_becomes_the_names_that_it_matches_and_the_order_stays() -> None:
    names = [f"model.layers.{layer}.{name}_proj" for layer in (0, 1) for name in "qv"]
    plain = {"^model.layers.0.q_proj": 1, r"layers\.\d+\.v_proj$": 2, "q_proj": 3}
    assert plain_keys(plain, names) == plain
    found = plain_keys({r"layers\.(0|1)\.q_proj": 4, "q_proj": 5}, names)
    assert found == {names[0]: 4, names[2]: 4, "q_proj": 5}
    assert list(found)[-1] == "q_proj"
    assert plain_keys(None, names) == {}
