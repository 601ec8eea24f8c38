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


@pytest.mark.parametrize(
    "text",
    [
        *('!!int ""', "!!bool x", "!!set {a}", "!!str a", "! a", "!own a", "[!!float 1]", "{a: !!map {}}"),
        *("&x !!str b", "!<tag:yaml.org,2002:str> x", "%TAG ! tag:x,2000:\n---\n!foo a", '!!timestamp "x"'),
    ],
)
def test_a_tag_of_any_kind_is_refused_with_its_line(text: str) -> None:
    with pytest.raises(YamlError, match=r"line \d: a tag, '.*'; none is read"):
        parse_yaml(text)
    with pytest.raises(YamlError) as caught:
        parse_yaml("# a comment\na:\n- " + text if "%" not in text else text)
    assert caught.value.line == 3


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("seed: " + "1:" * 201 + "1.5", 1),
        ("a: 1\nb: 0x_", 2),
        ("a: 1\nb: 2024-13-45", 2),
        ("a: 1\nb: 0x" + "F" * 10_000, 2),
        ("a: " + "1:" * 3_900 + "1", 1),
        (r'"\UFFFFFFFF"', None),
        (r'"\U00110000"', None),
    ],
)
def test_a_value_that_is_none_is_refused_as_yaml(text: str, line: int | None) -> None:
    with pytest.raises(YamlError) as caught:
        parse_yaml(text)
    assert caught.value.line == line
    assert len(caught.value.problem) < 200


def test_a_character_that_yaml_does_not_allow_is_named_with_its_place() -> None:
    with pytest.raises(YamlError) as caught:
        parse_yaml("a: 1\r\nb: \x1b[0m")
    assert str(caught.value) == "line 2: the character U+001B, which YAML does not allow"
    assert (caught.value.line, caught.value.column) == (2, 4)
