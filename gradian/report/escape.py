"""Untrusted text (rows, labels, model output) made safe to show.

Text goes through `visible` first: one line, bounded, with every character that cannot be seen written
out as an escape. What then reaches Markdown sits in a code span, where nothing is active: no HTML, link,
image, emphasis, mention or automatic link. Prose of our own may hold figures from outside, so it is escaped
character by character, and only its backtick pairs become code spans.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import groupby
from os import PathLike, fspath
from typing import Any
from unicodedata import category

EXCERPT = 200
"""Longest excerpt, in characters as shown."""

_SPACES = re.compile(r"[ \t\n\r\f\v\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000]+")
# Printable for Python and yet blank: fillers, the combining joiner, variation selectors (a known way to smuggle text).
_BLANK = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
# Accents and vowel signs on one letter; scripts that use many have four.
_MOST_MARKS = 8
_ACTIVE = re.compile(r"([\\`*_\[\]|~$])")
# What opens a block when a line or a list item begins with it.
_OPENING = re.compile(r"^(?:([#+\-=])|(\d+)([.)]))")
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
_CODE = re.compile(r"(?<!`)`(?=\s*[^`\s])([^`]+)`(?!`)")
# GitHub turns such words into links, mentions and pictures whatever their characters are escaped to; not inside code.
# From a word's beginning alone: one that is tried again from each of its characters takes the square of its length.
_LINKABLE = re.compile(
    r"(?<!\S)\S*(?:@|://|\bwww\.|\bmailto:|\bxmpp:|:[\w+-]+:|#\d|\bGH-\d)\S*", re.IGNORECASE
)


def visible(text: str, limit: int | None = EXCERPT) -> str:
    """Return `text` on one line, at most `limit` characters long, with nothing hidden in it.

    Runs of white space become one space. Control, format (bidi, zero-width), private, unassigned and
    surrogate characters become `\\x1b`, `\\u202e` or `\\U000e0041`. A cut is marked by an ellipsis, which
    counts, and never splits an escape.
    """
    # Bounded before the scan: a row can be megabytes long, and every kept character yields at least one.
    head = text if limit is None else text[: 64 * (limit + 1)]
    pieces = list(_pieces(_SPACES.sub(" ", head).strip(" ")))
    if limit is None:
        return "".join(pieces)
    kept: list[str] = []
    room = limit
    for index, piece in enumerate(pieces):
        rest_fits = len(piece) <= room and (
            len(piece) < room or (index == len(pieces) - 1 and len(head) == len(text))
        )
        if not rest_fits:
            return "".join(kept).rstrip(" ") + "…"
        kept.append(piece)
        room -= len(piece)
    return "".join(kept) if len(head) == len(text) else "".join(kept).rstrip(" ") + "…"


def is_visible(char: str) -> bool:
    """Whether a character shows as itself: no control, format, private, unassigned, surrogate or blank one."""
    return char.isprintable() and not _BLANK.match(char)


def _pieces(text: str) -> Iterator[str]:
    # Marks heaped on one letter would be drawn over the lines above and below.
    marks = 0
    for char in text:
        marks = marks + 1 if not char.isascii() and category(char) in ("Mn", "Me") else 0
        yield char if is_visible(char) and marks <= _MOST_MARKS else _escape(char)


def _escape(char: str) -> str:
    code = ord(char)
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def visible_path(path: PathLike[str] | str) -> str:
    """Return a path for one line of its own: as it is, double spaces included, if all of it can be seen."""
    text = fspath(path)
    return text if all(map(is_visible, text)) else visible(text, None)


def shown_in_place(text: str) -> str:
    """Return `text` with its spaces as they are and everything else that cannot be seen as an escape: a line of it.

    For pieces of a text that are shown one after the other. A line break becomes `\\n`.
    """
    return "".join("\\n" if piece == "\\x0a" else piece for piece in _pieces(text))


def encodable(text: str) -> str:
    """Return `text` with lone surrogates, which UTF-8 cannot hold, written as `\\udXXX`."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def markdown_code(text: str, limit: int | None = EXCERPT) -> str:
    """Return untrusted `text` as a Markdown code span that it cannot close, fit for a table cell too."""
    shown = visible(text, limit)
    if not shown:
        return "*(empty)*"
    runs = re.findall(r"`+", shown)
    fence = "`" * (max((len(run) for run in runs), default=0) + 1)
    pad = " " if shown[0] == "`" or shown[-1] == "`" else ""
    return f"{fence}{pad}{shown}{pad}{fence}"


def markdown_cell(text: str, limit: int | None = EXCERPT) -> str:
    """Return untrusted `text` as a code span for a table cell, where a pipe would end the cell."""
    return markdown_code(text, limit).replace("|", "\\|")


def markdown_prose(text: str) -> str:
    """Return a sentence with every active character escaped; what stands between two single backticks is code."""
    pieces: list[tuple[bool, str]] = []
    line, end = visible(text, None), 0
    for code in _CODE.finditer(line):
        pieces += [*_words(line[end : code.start()]), (True, code.group(1))]
        end = code.end()
    pieces += _words(line[end:])
    # Neighbouring code spans are one: their backticks would run together.
    merged = [
        (is_code, "".join(piece for _, piece in group))
        for is_code, group in groupby((piece for piece in pieces if piece[1]), key=lambda piece: piece[0])
    ]
    prose = "".join(markdown_code(piece, None) if is_code else _escaped(piece) for is_code, piece in merged)
    return _OPENING.sub(lambda opening: _escaped_opening(*opening.groups()), prose)


def _escaped_opening(mark: str | None, number: str | None, delimiter: str | None) -> str:
    return f"\\{mark}" if mark else f"{number}\\{delimiter}"


def _words(text: str) -> list[tuple[bool, str]]:
    # Words that would become links are code.
    pieces, end = [], 0
    for word in _LINKABLE.finditer(text):
        pieces += [(False, text[end : word.start()]), (True, word.group())]
        end = word.end()
    return [*pieces, (False, text[end:])]


def _escaped(text: str) -> str:
    escaped = _ACTIVE.sub(r"\\\1", text)
    return "".join(_ENTITIES.get(char, char) for char in escaped)


def ascii_json(value: Any) -> str:
    """Return `value` as indented JSON of visible ASCII characters alone."""
    # DEL is the one control character that the encoder leaves as it is.
    return json.dumps(value, indent=2, ensure_ascii=True, allow_nan=False).replace("\x7f", "\\u007f")


def fenced(text: str, info: str = "") -> str:
    """Return `text` in a fenced block with a fence longer than any run of backticks inside."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{info}\n{text}\n{fence}"


def quoted(text: str, limit: int = 80) -> str:
    """Return untrusted `text` for use inside a sentence: visible, bounded, between backticks of its own."""
    return "`" + (visible(text, limit).replace("`", "'") or "(empty)") + "`"
