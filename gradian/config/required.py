"""Settings that a command cannot do without."""

from __future__ import annotations

from gradian.errors import ConfigError


def required(value: str | None, key: str, flag: str, why: str) -> str:
    """Return a setting that a command cannot do without.

    Args:
        value: what the config and the flags give.
        key: its name in the config.
        flag: its flag.
        why: what is impossible without it, for the message.

    Raises:
        ConfigError: it is not set.
    """
    if value:
        return value
    raise ConfigError(
        f"{key} is not set: {why}", where=flag, fix=f"pass {flag}, or set `{key}` in the config"
    )
