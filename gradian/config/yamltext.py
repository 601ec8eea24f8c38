"""YAML text to plain values: no tags, no key twice, and no aliases that multiply."""

from __future__ import annotations

import re
from collections.abc import Hashable
from typing import Any

import yaml

# A chain of merge keys multiplies its entries with each alias; a config needs a few.
_MOST_ALIASES = 20
# The parser is slow in all of these: what is refused would take it seconds.
_MOST_CHARACTERS = 256 << 10
_MOST_MARKS = 8_000
_DEEPEST = 50
_BRACKET = re.compile(r"[\[\]{}]")
_MERGE = "tag:yaml.org,2002:merge"
# What PyYAML's own constructors raise at a value that is none, such as a date in month 13, beside its errors.
_UNREADABLE = (ValueError, TypeError, ArithmeticError, LookupError, AttributeError)
_MOST_BITS = 1024
_LONGEST_SHOWN = 60


class YamlError(Exception):
    """The text is not such YAML.

    Attributes:
        problem: what is wrong.
        line, column: where, counted from 1; None where the parser does not say.
    """

    def __init__(self, problem: str, line: int | None = None, column: int | None = None) -> None:
        self.problem = problem
        self.line = line
        self.column = column
        super().__init__(problem if line is None else f"line {line}: {problem}")


class _StrictLoader(yaml.SafeLoader):
    """SafeLoader that refuses every tag, and a key given twice instead of keeping the last."""

    aliases = 0
    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            self.aliases += 1
            if self.aliases > _MOST_ALIASES:
                raise yaml.composer.ComposerError(None, None, f"more than {_MOST_ALIASES} aliases")
        else:
            event = self.peek_event()  # type: ignore[no-untyped-call]
            if tag := getattr(event, "tag", None):
                raise yaml.composer.ComposerError(
                    None, None, f"a tag, {_shown(tag)}; none is read", event.start_mark
                )
        self.depth += 1
        if self.depth > _DEEPEST:
            raise yaml.composer.ComposerError(None, None, "nested too deeply")
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        try:
            value = super().construct_object(node, deep)
        except _UNREADABLE as error:
            raise yaml.constructor.ConstructorError(None, None, _reason(error), node.start_mark) from None
        if isinstance(value, int) and value.bit_length() > _MOST_BITS:
            # Python refuses to write one of many digits, in a message too.
            raise yaml.constructor.ConstructorError(
                None, None, "a whole number that is too large", node.start_mark
            )
        return value


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST_SHOWN else text[: _LONGEST_SHOWN - 1] + "\u2026"


def _reason(error: Exception) -> str:
    return f"a value that cannot be read ({str(error) or type(error).__name__})"


def _mapping_with_unique_keys(loader: _StrictLoader, node: yaml.MappingNode) -> dict[Hashable, Any]:
    seen: set[Any] = set()
    for key_node, _ in node.value:
        if key_node.tag == _MERGE:
            continue
        key = loader.construct_object(key_node, deep=True)
        if isinstance(key, Hashable) and key in seen:
            raise yaml.constructor.ConstructorError(
                None, None, f"the key {key!r} is given twice", key_node.start_mark
            )
        if isinstance(key, Hashable):
            seen.add(key)
    return loader.construct_mapping(node, deep=True)


_StrictLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping_with_unique_keys)


def _opened(text: str) -> int:
    """The most brackets that are open at once, those in quoted text counted too."""
    open_now = most = 0
    for match in _BRACKET.finditer(text):
        open_now = max(0, open_now + (1 if match[0] in "[{" else -1))
        most = max(most, open_now)
    return most


def parse_yaml(text: str) -> Any:
    """Return the value of a YAML document; a tag, a key given twice, many aliases and what is very long are refused.

    Raises:
        YamlError: it is not such YAML.
    """
    if len(text) > _MOST_CHARACTERS:
        raise YamlError(f"{len(text)} characters; at most {_MOST_CHARACTERS} are read")
    if sum(text.count(mark) for mark in ("[", "{", ",", ":", "- ")) > _MOST_MARKS:
        raise YamlError("it has too many values")
    if _opened(text) > _DEEPEST:
        # Before the parser sees it, which looks at each open bracket again for each next token.
        raise YamlError("nested too deeply")
    try:
        return yaml.load(text, Loader=_StrictLoader)
    except yaml.reader.ReaderError as error:
        before = (text[: error.position] + "x").splitlines()
        problem = f"the character U+{ord(text[error.position]):04X}, which YAML does not allow"
        raise YamlError(problem, len(before), len(before[-1])) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or str(error)
        raise YamlError(problem, *((mark.line + 1, mark.column + 1) if mark else ())) from None
    except RecursionError:
        raise YamlError("nested too deeply") from None
    except _UNREADABLE as error:  # From the scanner, at an escape of no character.
        raise YamlError(_reason(error)) from None
