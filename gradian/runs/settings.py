"""Values with the place that each was read from, laid over one another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

# At most one of them may be set: a source that says either silences the sources below it on both.
_ALTERNATIVES = {"warmup_steps": "warmup_ratio", "warmup_ratio": "warmup_steps"}


class Key(NamedTuple):
    """How one setting is spelt in a file.

    Attributes:
        name: the key in the file.
        field: the field of `HyperParameters`.
        convert: from the file's value; None where the value says nothing.
    """

    name: str
    field: str
    convert: Callable[[Any], Any]


@dataclass(frozen=True)
class Settings:
    """Some fields of `HyperParameters`. A field that is there as None was set to nothing, which is a value too.

    Attributes:
        values: by field.
        sources: by field, the file and key.
    """

    values: Mapping[str, Any] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, source: str, values: Mapping[str, Any]) -> Settings:
        """Return settings that all have one source."""
        return cls(dict(values), dict.fromkeys(values, source))

    @classmethod
    def read(cls, data: Mapping[str, Any], file: str, keys: Iterable[Key]) -> Settings:
        """Pick the keys that a file has; of two spellings of one field the first that is set counts."""
        values: dict[str, Any] = {}
        sources: dict[str, str] = {}
        for key in keys:
            if key.name in data and values.get(key.field) is None:
                values[key.field] = key.convert(data[key.name])
                sources[key.field] = f"{file}: {key.name}"
        return cls(values, sources)

    def over(self, below: Settings) -> Settings:
        """Return these, with what they do not say from `below`."""
        hidden = {_ALTERNATIVES[name] for name in self.values if name in _ALTERNATIVES}
        added = [name for name in below.values if name not in self.values and name not in hidden]
        return Settings(
            {**self.values, **{name: below.values[name] for name in added}},
            {**self.sources, **{name: below.sources[name] for name in added}},
        )

    def said(self) -> Settings:
        """Return these without what is None, so that a source below may say it."""
        kept = [name for name, value in self.values.items() if value is not None]
        return Settings(
            {name: self.values[name] for name in kept}, {name: self.sources[name] for name in kept}
        )
