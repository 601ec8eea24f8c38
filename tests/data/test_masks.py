from __future__ import annotations

import datetime
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradian.data.masks import (
    common_prefix,
    contains_ids,
    dated_template,
    marked_template,
    marker_pair,
    prefix_extents,
    span_mask,
    split_markers,
    token_extents,
    turn_end,
)

TAGS = st.sampled_from(["{% generation %}", "{%- generation %}", "{%generation-%}", "{%- generation -%}"])


def render(template: str, **names: object) -> str:
    """As transformers sets up its Jinja environment."""
    from jinja2 import nodes
    from jinja2.ext import Extension
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        tags = {"generation"}  # noqa: RUF012 (jinja's own attribute)

        def parse(self, parser):  # type: ignore[no-untyped-def]
            line = next(parser.stream).lineno
            body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
            return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

        def _body(self, caller):  # type: ignore[no-untyped-def]
            return caller()

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation])
    return environment.from_string(template).render(**names)


@given(TAGS, TAGS, st.lists(st.sampled_from([" ", "\n", "x", "{{ 'v ' }}"]), max_size=9))
def test_markers_leave_the_rendered_text_as_it_was(first: str, last: str, pieces: list[str]) -> None:
    third = len(pieces) // 3
    before, inside, after = pieces[:third], pieces[third : 2 * third], pieces[2 * third :]
    closing = last.replace("generation", "endgeneration")
    template = "".join([*before, first, *inside, closing, *after])
    opening, ending = marker_pair([template])
    text, spans = split_markers(render(marked_template(template, opening, ending)), opening, ending)
    assert text == render(template)
    assert len(spans) == 1
    assert text[slice(*spans[0])].replace(" ", "").replace("\n", "") == "".join(
        "v" if piece.startswith("{{") else piece.strip() for piece in inside
    )


def test_marker_pair_avoids_characters_of_the_text() -> None:
    assert marker_pair(["a\ufdd0", "b\ufdd2"]) == ("\ufdd1", "\ufdd3")
    with pytest.raises(ValueError, match="every Unicode noncharacter"):
        marker_pair(["".join(map(chr, range(0xFDD0, 0xFDF0)))])


@given(st.sampled_from(["%d %b %Y", "%Y-%m-%d", "%A, %B %-d at %H:%M", "100%%"]), st.booleans())
def test_a_dated_template_writes_the_pinned_date_and_else_the_same(layout: str, spaced: bool) -> None:
    date = datetime.datetime(2024, 7, 6)
    body = (
        ("  " if spaced else "\n\n")
        + "{% if true %}\n[{{ strftime_now('"
        + layout
        + "') }}]\n{% endif %}\n x"
    )
    own = render(body, strftime_now=date.strftime)
    assert render(dated_template(body, date)) == own
    assert dated_template("no clock", date) == "no clock"


@given(st.text("ab", max_size=8), st.text("ab", max_size=8))
def test_common_prefix_is_the_longest(first: str, second: str) -> None:
    n = common_prefix(first, second)
    assert first[:n] == second[:n]
    assert n == min(len(first), len(second)) or first[n] != second[n]


@pytest.mark.parametrize(
    ("text", "content", "calls", "ended"),
    [
        ("hi<e>\n", "hi", False, "hi<e>"),
        ("hi <e>\n<x>", "hi", False, "hi <e>"),
        ("<t>\n</t>hi<e>\n", "hi", False, "<t>\n</t>hi<e>"),
        ("<e>\n", "", False, "<e>"),
        ("hi<t>f()</t><e>\n", "hi", True, "hi<t>f()</t><e>"),
        ("hi\n\n", "hi", False, "hi"),
    ],
)
def test_a_turn_ends_with_its_end_token_and_not_the_newline(
    text: str, content: str, calls: bool, ended: str
) -> None:
    whole = "ask:" + text
    _, end = turn_end(whole, 4, len(whole), content, calls, re.compile("<e>|<x>|<t>|</t>"))
    assert whole[4:end] == ended


def test_trimmed_white_space_goes_back_to_the_token_it_came_from() -> None:
    # "a: b  c" as [a][:␠][b][␠␠][c], offsets trimmed.
    offsets = [(0, 1), (1, 2), (3, 4), (6, 6), (6, 7)]
    extents = token_extents(offsets, lambda: ["a", ":\u0120", "b", "\u0120\u0120", "c"])
    assert extents.tolist() == [[0, 1], [1, 3], [3, 4], [4, 6], [6, 7]]


def test_a_token_across_the_border_is_supervised_and_counted() -> None:
    extents = np.array([[0, 2], [2, 4], [4, 6], [6, 6], [6, 8]])
    mask, straddling = span_mask(extents, [(3, 6)])
    assert mask.tolist() == [False, True, True, False, False]
    assert straddling == 1


@given(st.text("ab ", min_size=1, max_size=20), st.data())
def test_without_offsets_the_mask_is_that_of_offsets_at_the_borders(text: str, data: st.DataObject) -> None:
    # Pairs of equal letters are one token, so borders may fall inside one.
    tokens = [match.group() for match in re.finditer(r"(.)\1?", text)]
    ends = np.cumsum([len(token) for token in tokens])
    exact = np.stack([np.concatenate([[0], ends[:-1]]), ends], axis=1)
    start = data.draw(st.integers(0, len(text) - 1))
    end = data.draw(st.integers(start + 1, len(text)))

    def tokenize(part: str) -> list[int]:
        return [hash(match.group()) for match in re.finditer(r"(.)\1?", part)]

    extents = prefix_extents(text, tokenize(text), [start, end], tokenize)
    assert span_mask(extents, [(start, end)])[0].tolist() == span_mask(exact, [(start, end)])[0].tolist()


def test_contains_ids_wants_them_in_a_row() -> None:
    assert contains_ids([1, 2, 3], [2, 3])
    assert not contains_ids([1, 2, 3], [1, 3])
