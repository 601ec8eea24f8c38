"""What the settings of an `adapter_config.json` may be, looked at before PEFT is given them.

PEFT takes any value, and fails on it later and elsewhere; texts it takes for regular expressions, which need not end.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from gradian.data.jsontext import excerpt
from gradian.errors import AdapterError
from gradian.model.name_patterns import name_pattern

# No model has layers as wide; PEFT would ask for memory by it.
_HIGHEST_RANK = 1 << 16
_LONGEST_PATTERN = 16_384
_MOST_KEYS = 10_000
_MOST_LAYERS = 10_000
_LONGEST_SHOWN = 80
_NAME = re.compile(r"[\w.-]{1,1000}")
# What Python's matcher goes through once: names, dots, numbers and ends.
_PLAIN_KEY = re.compile(r"\^?(?:[\w-]|\\?\.|\\d\+?(?!\\d))*\$?")


class _Kind(NamedTuple):
    """What a setting may be: a test, and the words for it."""

    allows: Callable[[Any], bool]
    expected: str


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return (_is_whole(value) and abs(value) < 1 << 63) or (isinstance(value, float) and math.isfinite(value))


def _is_rank(value: Any) -> bool:
    return _is_whole(value) and 1 <= value <= _HIGHEST_RANK


def _is_expression(value: Any) -> bool:
    if not isinstance(value, str) or len(value) > _LONGEST_PATTERN:
        return False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            re.compile(value)
    except (re.error, RecursionError, OverflowError):
        return False
    return True


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(entry, str) for entry in value)


def _is_names(value: Any) -> bool:
    return _is_texts(value) and all(_NAME.fullmatch(entry) for entry in value)


def _as_peft_matches(key: str) -> str:
    return rf"(.*\.)?({key})$"


def _is_key(key: Any) -> bool:
    return bool(_PLAIN_KEY.fullmatch(key)) or (
        _is_expression(_as_peft_matches(key)) and name_pattern(_as_peft_matches(key)) is not None
    )


def _by_module(allows: Callable[[Any], bool], expected: str) -> _Kind:
    return _Kind(
        lambda value: (
            isinstance(value, dict)
            and len(value) <= _MOST_KEYS
            and all(map(_is_key, value))
            and all(map(allows, value.values()))
        ),
        f"an object of {expected} by the name of a module, or by a simple regular expression for names",
    )


def _is_replication(value: Any) -> bool:
    pairs = value if isinstance(value, list) else [value]
    return (
        all(
            isinstance(pair, list)
            and len(pair) == 2
            and all(map(_is_whole, pair))
            and 0 <= pair[0] < pair[1] <= _MOST_LAYERS
            for pair in pairs
        )
        and sum(pair[1] - pair[0] for pair in pairs) <= _MOST_LAYERS
    )


def _or_null(kind: _Kind) -> _Kind:
    return _Kind(lambda value: value is None or kind.allows(value), f"{kind.expected}, or null")


_TEXT = _Kind(lambda value: isinstance(value, str), "text")
_TRUTH = _Kind(lambda value: isinstance(value, bool), "true or false")
_MODULES = _Kind(
    lambda value: _is_texts(value) or _is_expression(value), "a list of names, or one regular expression"
)
_KINDS: Mapping[str, _Kind] = {
    "r": _Kind(_is_rank, f"a whole number from 1 to {_HIGHEST_RANK}"),
    "lora_alpha": _Kind(_is_number, "a number"),
    "lora_dropout": _Kind(lambda value: _is_number(value) and 0 <= value <= 1, "a number from 0 to 1"),
    "bias": _Kind(lambda value: value in ("none", "all", "lora_only"), "none, all or lora_only"),
    "target_modules": _or_null(_MODULES),
    "exclude_modules": _or_null(_MODULES),
    "modules_to_save": _or_null(_Kind(_is_names, "a list of names of modules")),
    "target_parameters": _or_null(_Kind(_is_texts, "a list of names")),
    "layers_pattern": _or_null(
        _Kind(
            lambda value: value == "" or _is_names(value if isinstance(value, list) else [value]),
            "a name, or a list of names",
        )
    ),
    "layers_to_transform": _or_null(
        _Kind(
            lambda value: all(map(_is_whole, value if isinstance(value, list) else [value])),
            "a whole number, or a list of whole numbers",
        )
    ),
    "layer_replication": _or_null(
        _Kind(_is_replication, f"a list of pairs of layers, of {_MOST_LAYERS} layers at most")
    ),
    "rank_pattern": _or_null(_by_module(_is_rank, "ranks")),
    "alpha_pattern": _or_null(_by_module(_is_number, "numbers")),
    "init_lora_weights": _or_null(
        _Kind(lambda value: isinstance(value, bool | str), "true, false or the name of a method")
    ),
    "use_rslora": _or_null(_TRUTH),
    "use_dora": _or_null(_TRUTH),
    "lora_bias": _or_null(_TRUTH),
    "fan_in_fan_out": _or_null(_TRUTH),
    "inference_mode": _or_null(_TRUTH),
    "base_model_name_or_path": _or_null(_TEXT),
    "revision": _or_null(_TEXT),
    "peft_version": _or_null(_TEXT),
}


def check_settings(raw: Mapping[str, Any], path: Path) -> None:
    """Refuse a setting that is no value of its kind; those that are not listed here are PEFT's to judge.

    Raises:
        AdapterError: naming the file and the key.
    """
    for key, kind in _KINDS.items():
        if key in raw and not kind.allows(raw[key]):
            raise AdapterError(
                "the setting cannot have this value",
                where=f"{path}: {key}",
                found=excerpt(repr(raw[key]), _LONGEST_SHOWN)[1:-1],
                expected=kind.expected,
                fix="copy the file again, or save the adapter again with PEFT",
            )


def check_ranks(raw: Mapping[str, Any], shapes: Iterable[Iterable[int]], path: Path) -> None:
    """Refuse a rank above every dimension of every tensor, before PEFT asks for memory by it.

    Raises:
        AdapterError: naming the file and the key.
    """
    widest = max((size for shape in shapes for size in shape), default=_HIGHEST_RANK)
    ranks = {"r": raw.get("r", 1), "rank_pattern": max((raw.get("rank_pattern") or {}).values(), default=1)}
    for key, rank in ranks.items():
        if rank > widest:
            raise AdapterError(
                "the rank is not that of the adapter's tensors",
                where=f"{path}: {key}",
                found=str(rank),
                expected=f"no more than {widest}, the longest side of a tensor",
                fix="check that the configuration and the weights are those of one adapter",
            )


def plain_keys(pattern: Mapping[str, Any] | None, modules: Iterable[str]) -> dict[str, Any]:
    """Return a rank or alpha pattern in which an expression is the names that it matches among `modules`.

    PEFT takes the first key that matches, so the order stays.
    """
    plain: dict[str, Any] = {}
    names = list(modules)
    for key, value in (pattern or {}).items():
        found = None if _PLAIN_KEY.fullmatch(key) else name_pattern(_as_peft_matches(key))
        for name in [key] if found is None else filter(found.fullmatch, names):
            plain.setdefault(name, value)
    return plain
