"""YAML files of a trainer's settings, in a run folder or beside it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import Any, NamedTuple

from gradian.config.yamltext import YamlError, parse_yaml
from gradian.runs.files import RunFiles

# The parser needs seconds for a mebibyte; a config has a few kilobytes.
LIMIT = 256 << 10
_MOST_FILES = 20
_ENDINGS = (".yaml", ".yml")
_LOGGED = re.compile(r"config:\s*\{")


class YamlConfig(NamedTuple):
    """One file's settings.

    Attributes:
        file: its name, relative to the run folder.
        data: its mapping.
    """

    file: str
    data: Mapping[str, Any]


def parse_config(files: RunFiles, file: str, text: str) -> dict[str, Any]:
    """Return the mapping in a YAML text; empty, with the reason noted, where it is none."""
    if len(text) > LIMIT:
        files.refuse(file, f"{len(text)} characters of YAML; at most {LIMIT} are read")
        return {}
    try:
        data = parse_yaml(text)
    except YamlError as error:
        files.refuse(file, f"its YAML cannot be read: {error}")
        return {}
    return (
        {key: value for key, value in data.items() if isinstance(key, str)} if isinstance(data, dict) else {}
    )


def own_configs(files: RunFiles) -> tuple[YamlConfig, ...]:
    """Return the YAML mappings that lie in a folder itself, by name."""
    try:
        names = sorted(name for name in os.listdir(files.folder) if name.lower().endswith(_ENDINGS))
    except OSError:
        return ()
    found = []
    for name in names[:_MOST_FILES]:
        text = files.text(name, LIMIT)
        if text is not None:
            found.append(YamlConfig(name, parse_config(files, name, text)))
    return tuple(found)


def config_above(files: RunFiles, is_ours: Callable[[Mapping[str, Any]], bool]) -> YamlConfig | None:
    """Return the trainer's config in the folder above: that which names the run folder, or else the only one.

    Args:
        files: the run folder.
        is_ours: whether a mapping is a config of the trainer.
    """
    folder = files.folder.resolve()
    above = RunFiles(folder.parent)
    configs = [entry for entry in own_configs(above) if is_ours(entry.data)]
    named = [entry for entry in configs if _output_name(entry.data) == folder.name]
    open_ended = [entry for entry in configs if _output_name(entry.data) is None]
    chosen = named[:1] or (open_ended if len(open_ended) == 1 else [])
    if not chosen:
        for entry in above.unread:
            files.refuse(f"../{entry.file}", entry.reason)
        return None
    return YamlConfig(f"../{chosen[0].file}", chosen[0].data)


def _output_name(data: Mapping[str, Any]) -> str | None:
    value = data.get("output_dir")
    return PurePath(value).name if isinstance(value, str) and value else None


def log_config(text: str) -> Mapping[str, Any]:
    """Return the first JSON object that follows a line ending in `config:` in a log; empty where there is none."""
    for start in _LOGGED.finditer(text):
        try:
            data, _ = json.JSONDecoder().raw_decode(text, start.end() - 1)
        except (ValueError, RecursionError):
            continue
        if isinstance(data, dict):
            return data
    return {}
