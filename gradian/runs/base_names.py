"""Names of base models: what they say, and when two of them mean the same."""

from __future__ import annotations

import re

_QUANTISED = re.compile(r"(?i)(bnb|[48]bit|int[48]|gptq|awq)(?![a-z])")
_QUANTISED_TAIL = re.compile(r"(?i)(-unsloth)?-bnb-4bit$")
# Repositories of Llama 3 and 3.1 were renamed; copies and adapters made before have either name.
_RENAMED = re.compile(r"(?i)(^|/)meta-(?=llama-3)")


def is_quantised(name: str) -> bool:
    """Whether a name says that its weights are quantised."""
    return bool(_QUANTISED.search(name))


def full_precision(name: str) -> str:
    """The name of the 16-bit repository that a bitsandbytes one was made from; other names stay as they are."""
    return _QUANTISED_TAIL.sub("", name)


def repository(name: str) -> str:
    """A name as it is compared: no trailing slash, hub cache folders as `owner/name`, no quantised twin, lower case.

    Of a repository that was renamed the newer name counts.
    """
    plain = name.strip().replace("\\", "/").rstrip("/")
    *_, folder, kind, revision = ["", "", *plain.split("/")]
    cached = folder.partition("models--")[2]
    if cached and kind == "snapshots" and revision:
        plain = cached.replace("--", "/")
    return _RENAMED.sub(r"\1", full_precision(plain)).lower()


def is_path(name: str) -> bool:
    """Whether a name, as `repository` gives it, is a folder rather than a hub id."""
    return name.startswith((".", "/", "~")) or name.count("/") != 1 or ":" in name
