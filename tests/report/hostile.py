"""Text made to break out of where it is shown, and what Markdown makes of a document."""

from __future__ import annotations

from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token

ATTACKS = (
    "![x](http://evil.test/a.png)",
    "[click](javascript:alert(1))",
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<!-- ",
    "\n# Heading\n",
    "\n\n---\n\n",
    "\n```\n",
    "````",
    "` ",
    "``",
    "|",
    "\\|",
    "| a | b |\n|---|---|\n",
    "\\",
    "**",
    "_",
    "~~",
    "&lt;",
    "<http://evil.test>",
    "https://evil.test",
    "www.evil.test",
    "a@evil.test",
    "@team",
    "[ref]: http://evil.test\n",
    "\u202eabc",
    "\u200b",
    "\ufeff",
    "\x1b[31m",
    "\x1b]8;;http://evil.test\x07",
    "\x9b31m",
    "\x00",
    "\r",
    "\u2028",
    "\ud800",
    "\U000e0041",
    "[bold red]",
    "[/]",
    ":smile:",
    "1. ",
    "- ",
    "+ ",
    "> ",
    "===",
    "    code",
    "\t",
    " ",
    "é",
    "漢",
)

TEXTS = st.lists(
    st.one_of(
        st.sampled_from(ATTACKS), st.text(st.characters(), max_size=6), st.text("`|\\[]<>*_ ", max_size=6)
    ),
    max_size=8,
).map("".join)

EVERYTHING = "".join(ATTACKS)


def parse(document: str) -> list[Token]:
    """Return all tokens, inline ones in place, under CommonMark with tables and strikethrough."""
    tokens = MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(document)
    return [inner for token in tokens for inner in (token, *(token.children or ()))]


def kinds(document: str) -> set[str]:
    return {token.type for token in parse(document)}


def codes(document: str) -> list[str]:
    return [token.content for token in parse(document) if token.type == "code_inline"]
