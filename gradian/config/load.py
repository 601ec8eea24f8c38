"""YAML file and flags to one validated Config; errors carry the key's path."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from gradian.config.schema import Config
from gradian.config.yamltext import YamlError, parse_yaml
from gradian.errors import ConfigError


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(
            "there is no such config file",
            where=str(path),
            fix="write one with `gradian init-config`, or correct --config",
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            "the config file cannot be read", where=str(path), found=str(error), expected="UTF-8 YAML"
        ) from None
    try:
        data = parse_yaml(text)
    except YamlError as error:
        at = f"{path}:{error.line}:{error.column}" if error.line else str(path)
        raise ConfigError("the config file is not valid YAML", where=at, found=error.problem) from None
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise ConfigError(
            "the config file must hold a mapping of settings", where=str(path), found=type(data).__name__
        )
    return data


def load_config(path: str | Path | None = None, overrides: Mapping[str, Any] | None = None) -> Config:
    """Read a config file and lay flags over it.

    Args:
        path: YAML file, or None for defaults alone.
        overrides: dotted key (`engine.name`) to value; entries that are None are left out, so a flag
            that was not given overrides nothing.

    Raises:
        ConfigError: naming the file or flag, every offending key, its value and what is allowed.
    """
    source = Path(path) if path is not None else None
    data = _read(source) if source else {}
    return config_from_mapping(data, overrides, source=str(source) if source else None)


def config_from_mapping(
    data: Mapping[str, Any], overrides: Mapping[str, Any] | None = None, source: str | None = None
) -> Config:
    """Validate nested settings, with dotted `overrides` laid over them; see `load_config`."""
    merged: dict[str, Any] = copy.deepcopy(dict(data))
    flagged: set[str] = set()
    for dotted, value in (overrides or {}).items():
        if value is None:
            continue
        flagged.add(dotted)
        *sections, last = dotted.split(".")
        target = merged
        for section in sections:
            inner = target.get(section)
            # An empty section (`grads:`) is null in YAML; a flag into it starts it.
            target[section] = inner if isinstance(inner, dict) else {}
            target = target[section]
        if dotted == "adapter_path":
            target.pop("adapter", None)
        target[last] = value
    _drop_empty_sections(merged, Config)
    try:
        return Config.model_validate(merged)
    except ValidationError as error:
        raise _as_config_error(error, merged, flagged, source) from None


def _drop_empty_sections(values: dict[str, Any], model: type[BaseModel]) -> None:
    # A section left empty in YAML means its defaults.
    for name, field in model.model_fields.items():
        kind = field.annotation
        if not (isinstance(kind, type) and issubclass(kind, BaseModel)):
            continue
        if values.get(name, 0) is None:
            del values[name]
        elif isinstance(values.get(name), dict):
            _drop_empty_sections(values[name], kind)


def _as_config_error(
    error: ValidationError, data: Mapping[str, Any], flagged: set[str], source: str | None
) -> ConfigError:
    problems = []
    for item in error.errors(include_url=False, include_input=False):
        path = ".".join(str(part) for part in item["loc"]) or "(top level)"
        origin = "flag" if path in flagged else (source or "config")
        problems.append(f"{origin}: {path}: {_explain(item, data)}")
    if len(problems) == 1:
        origin, path, text = problems[0].split(": ", 2)
        return ConfigError(text, where=f"{origin}: {path}", fix="`docs/configuration.md` lists every setting")
    return ConfigError(
        f"{len(problems)} settings are wrong",
        details=[f"- {problem}" for problem in problems],
        fix="`docs/configuration.md` lists every setting",
    )


def _explain(item: Any, data: Mapping[str, Any]) -> str:
    loc = item["loc"]
    value: Any = data
    for part in loc:
        try:
            value = value[part]
        except (KeyError, IndexError, TypeError):
            value = None
            break
    if item["type"] == "extra_forbidden":
        known = _keys_beside(loc[:-1])
        close = get_close_matches(str(loc[-1]), known, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        return f"unknown setting; {hint}Known here: {', '.join(known)}"
    if item["type"] == "value_error":
        # pydantic prefixes these with "Value error, ".
        message = item["msg"].removeprefix("Value error, ")
        return message if not loc else f"{value!r} {message}"
    message = item["msg"][0].lower() + item["msg"][1:]
    return (
        f"found {value!r}, but the {message}"
        if message.startswith("input")
        else f"found {value!r}: {message}"
    )


def _keys_beside(path: tuple[Any, ...]) -> list[str]:
    model: type[BaseModel] = Config
    for part in path:
        annotation = model.model_fields[part].annotation
        if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
            return []
        model = annotation
    return list(model.model_fields)


def dump_config(config: Config) -> dict[str, Any]:
    """Return the whole config as plain JSON values, defaults included."""
    return config.model_dump(mode="json")
