"""A run of trl's `SFTTrainer`."""

from __future__ import annotations

from gradian.runs.contents import Contents, Reading
from gradian.runs.scalars import as_bool, as_count, as_text
from gradian.runs.settings import Key, Settings
from gradian.runs.transformers_run import argument_settings

# Of the two names of the limit the one that is set counts: unsloth leaves `max_length` empty and caps at the other.
KEYS = (
    Key("max_length", "max_length", as_count),
    Key("max_seq_length", "max_length", as_count),
    Key("packing", "packing", as_bool),
    Key("packing_strategy", "packing_strategy", as_text),
    Key("padding_free", "padding_free", as_bool),
    Key("assistant_only_loss", "assistant_only_loss", as_bool),
    Key("completion_only_loss", "completion_only_loss", as_bool),
    Key("pad_token", "pad_token", as_text),
)
_OVERLONG_ROWS = Settings.of("default of trl", {"overlong_rows": "truncate"})


def read(contents: Contents) -> Reading | None:
    """Read trl's arguments; None where they are no `SFTConfig` and the model card does not name trl."""
    arguments, card = contents.arguments_class, contents.card
    own = arguments.startswith("trl.") or arguments.endswith("SFTConfig")
    if own or "trl" in card.tags or "trl" in card.versions:
        return Reading(trl_settings(contents))
    return None


def trl_settings(contents: Contents) -> Settings:
    """Return what trl's arguments say, on top of those of transformers."""
    settings = argument_settings(contents, KEYS)
    return settings.over(_OVERLONG_ROWS) if contents.arguments is not None else settings
