from __future__ import annotations

import pytest

from gradian.config.yamltext import YamlError, parse_yaml


def test_plain_values_anchors_and_merge_keys_are_read() -> None:
    assert parse_yaml("a: &x {b: 1}\nc: {<<: *x, d: [2, null]}\n") == {
        "a": {"b": 1},
        "c": {"b": 1, "d": [2, None]},
    }


def test_an_error_says_where() -> None:
    with pytest.raises(YamlError, match="line 2: the key 'a' is given twice") as caught:
        parse_yaml("a: 1\na: 2\n")
    assert (caught.value.line, caught.value.column) == (2, 1)


def test_merge_keys_that_multiply_are_refused() -> None:
    levels = ["k0: &k0 {a: 1}"] + [
        f"k{n}: &k{n} {{<<: [{', '.join([f'*k{n - 1}'] * 9)}]}}" for n in range(1, 12)
    ]
    with pytest.raises(YamlError, match="more than 20 aliases"):
        parse_yaml("\n".join(levels))
