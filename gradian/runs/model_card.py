"""`README.md`: tags, versions, and the settings that the Hugging Face trainer lists there."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gradian.runs.files import RunFiles
from gradian.runs.scalars import as_text
from gradian.runs.yamlconfig import parse_config

FILE = "README.md"
_LIMIT = 2 << 20
# In two parts, neither of which is tried again from a later place for want of the other.
_FRONT_OPENING = re.compile(r"---\s*\n")
_FRONT_CLOSING = re.compile(r"\n---[^\S\n]*(?:\n|\Z)")
_FENCED_YAML = re.compile(r"^```ya?ml[ \t]*\n(.*?)^```", re.DOTALL | re.MULTILINE)
_VERSION = re.compile(
    r"^[ \t]*[-*][ \t]*(PEFT|TRL|Transformers|PyTorch|Datasets|Tokenizers|Unsloth|Axolotl)(?:[ \t]*:)?[ \t]+"
    r"([0-9][0-9A-Za-z.+_-]{0,40})[ \t]*$",
    re.IGNORECASE | re.MULTILINE,
)
_AXOLOTL_VERSION = re.compile(r"^axolotl version: `([0-9][^`\n]{0,60})`", re.MULTILINE)
_LISTED = re.compile(r"^- ([a-z_]+): (.{1,300})$", re.MULTILINE)
_HYPERPARAMETERS = "The following hyperparameters were used during training:"
_LIBRARY = {"pytorch": "torch"}


@dataclass(frozen=True)
class ModelCard:
    """What a model card says.

    Attributes:
        tags: its tags, lower case.
        base_model: the base model.
        listed: the settings that the trainer lists, as text by its names.
        versions: by library.
        config: the YAML config in its body (axolotl).
        text: the card.
    """

    tags: frozenset[str] = frozenset()
    base_model: str | None = None
    listed: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    text: str = ""


def read_card(files: RunFiles, name: str = FILE) -> ModelCard:
    """Return the card; an empty one where there is none that can be read."""
    text = files.text(name, _LIMIT)
    if text is None:
        return ModelCard()
    text = text.replace("\r\n", "\n")
    meta = parse_config(files, name, _front_matter(text))
    fenced = _FENCED_YAML.search(text) if "axolotl" in text else None
    config = parse_config(files, name, fenced[1]) if fenced else {}
    versions = {_library(found): version for found, version in _VERSION.findall(text)}
    axolotl = _AXOLOTL_VERSION.search(text)
    if axolotl:
        versions["axolotl"] = axolotl[1]
    tags = meta.get("tags")
    base = meta.get("base_model")
    listed = text.partition(_HYPERPARAMETERS)[2].strip().split("\n\n")[0]
    return ModelCard(
        tags=frozenset(tag.lower() for tag in tags if isinstance(tag, str))
        if isinstance(tags, list)
        else frozenset(),
        base_model=as_text(base[0] if isinstance(base, list) and base else base),
        listed=dict(_LISTED.findall(listed)),
        versions=versions,
        config=config,
        text=text,
    )


def _front_matter(text: str) -> str:
    opening = _FRONT_OPENING.match(text)
    closing = _FRONT_CLOSING.search(text, opening.end()) if opening else None
    return text[opening.end() : closing.start()] if opening and closing else ""


def _library(name: str) -> str:
    return _LIBRARY.get(name.lower(), name.lower())
