"""The starter config file of `gradian init-config`, generated from the schema."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Iterator
from typing import Any

import yaml
from pydantic import BaseModel

from gradian.config.schema import Config

_FILL_IN = ("base_model", "adapter_path", "dataset", "eval_dataset", "run_dir")
_WIDTH = 100


def _plain(value: Any) -> str:
    if isinstance(value, str):
        # Always quoted: a model may be called `a: b` or `1e5`.
        return yaml.safe_dump(value, default_style='"', allow_unicode=True, width=sys.maxsize).rstrip("\n")
    if isinstance(value, float):
        # JSON's 1e-05 is text in YAML 1.1, which wants 1.0e-05.
        return yaml.safe_dump(value).splitlines()[0]
    # Integers, null, lists and mappings read the same in JSON and in YAML.
    return json.dumps(value)


def _setting(name: str, value: Any, description: str, indent: str, active: bool) -> Iterator[str]:
    for line in textwrap.wrap(description.replace("`", ""), _WIDTH - len(f"{indent}# ")):
        yield f"{indent}# {line}"
    yield f"{indent}{'' if active else '#'}{name}: {_plain(value)}"


def _section(name: str, section: BaseModel, indent: str) -> Iterator[str]:
    doc = textwrap.dedent(type(section).__doc__ or "").strip()
    yield from (f"{indent}# {line}" for line in textwrap.wrap(doc, _WIDTH - len(f"{indent}# ")))
    yield f"{indent}{name}:"
    inner = f"{indent}  "
    for key, field in type(section).model_fields.items():
        value = getattr(section, key)
        if isinstance(value, BaseModel):
            yield from _section(key, value, inner)
        else:
            yield from _setting(key, value, field.description or "", inner, False)


def starter_yaml(base_model: str = "") -> str:
    """Return a YAML config that loads as it is and shows every setting with its default.

    The paths to fill in come first; every other setting is commented out (`#name: value`, while
    explanations are `# words`), so that removing one `#` sets it.

    Args:
        base_model: model id or path to fill in.
    """
    defaults = Config(base_model=base_model)
    lines = ["# Gradian settings. Remove the # before a setting to change it; flags override this file.", ""]
    sections: list[tuple[str, BaseModel]] = []
    fields = Config.model_fields
    for name in (*_FILL_IN, *(name for name in fields if name not in _FILL_IN)):
        value = getattr(defaults, name)
        if isinstance(value, BaseModel):
            sections.append((name, value))
            continue
        lines += _setting(name, value, fields[name].description or "", "", name in _FILL_IN)
    for name, section in sections:
        lines += ["", *_section(name, section, "")]
    return "\n".join(lines) + "\n"
