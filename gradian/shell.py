"""Command lines to copy: quoted for a shell, with nothing in them that a terminal would obey."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable


def shell_line(words: Iterable[str]) -> str:
    """Return words as one line that a shell takes apart into the same words, byte for byte.

    A word with characters that cannot be seen (control characters, bidi marks, bytes that are no UTF-8) is written
    as `$'...'`, which bash, zsh, ksh and POSIX 2024 know.
    """
    return " ".join(map(_quoted, words))


def _quoted(word: str) -> str:
    if word.isprintable():
        return shlex.quote(word)
    return "$'" + "".join(map(_escaped, word)) + "'"


def _escaped(char: str) -> str:
    if char in "\\'":
        return f"\\{char}"
    # Three octal digits and no more: what follows is never taken for one of them.
    return char if char.isprintable() else "".join(f"\\{byte:03o}" for byte in os.fsencode(char))
