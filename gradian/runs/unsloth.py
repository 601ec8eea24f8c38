"""A run of unsloth: trl's arguments under a class that is written anew for each run and that nobody can import."""

from __future__ import annotations

import re

from gradian.runs.contents import Contents, Reading
from gradian.runs.settings import Settings
from gradian.runs.trl import trl_settings

_QUANTISED = re.compile(r"(?i)-bnb-4bit$")


def read(contents: Contents) -> Reading | None:
    """Read trl's arguments; a base from a 4-bit repository was quantised in training.

    None where neither the arguments' class, the model card nor the base model's name is unsloth's.
    """
    base, card = contents.base_model or "", contents.card
    quantised = _QUANTISED.search(base) is not None
    named = "unsloth" in contents.arguments_class.lower() or "unsloth" in {*card.tags, *card.versions}
    if not (named or quantised or base.lower().startswith("unsloth/")):
        return None
    settings = trl_settings(contents)
    if quantised:
        source = f"{contents.adapter_file}: base_model_name_or_path"
        settings = settings.over(Settings.of(source, {"load_in_4bit": True}))
    return Reading(settings)
