"""What a printed command line is made of: a shell takes it apart into the very words."""

from __future__ import annotations

import os
import subprocess

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gradian.shell import shell_line

ODD = [
    "",
    " ",
    "a b",
    "it's",
    '"',
    "$HOME",
    "`id`",
    "*",
    "a\nb",
    "\x1b[2Jx",
    "\u202eabc",
    "\udcff1",
    "\\",
    "!",
    "-n",
    "é7",
]


def taken_apart(line: str) -> list[str]:
    """The words that bash makes of a line."""
    done = subprocess.run(
        ["bash", "-c", f"printf '%s\\0' {line}"],
        capture_output=True,
        check=True,
        env={**os.environ, "LC_ALL": "C"},
    )
    return [os.fsdecode(word) for word in done.stdout.split(b"\0")[:-1]]


def test_a_shell_takes_a_line_apart_into_its_words() -> None:
    assert taken_apart(shell_line(ODD)) == ODD


@pytest.mark.parametrize("word", ODD)
def test_nothing_in_a_line_is_obeyed_by_a_terminal(word: str) -> None:
    assert shell_line([word]).isprintable()


def test_plain_words_stay_as_they_are() -> None:
    line = "gradian index --config runs/a.yaml"
    assert shell_line(line.split()) == line


@given(
    st.lists(
        st.text(st.characters(exclude_characters="\0"), max_size=12).map(
            lambda text: os.fsdecode(text.encode("utf-8", "surrogatepass"))
        ),
        min_size=1,
        max_size=4,
    )
)
@example(["\x01" + "7"])
def test_any_words_come_back(words: list[str]) -> None:
    assert taken_apart(shell_line(words)) == words
