from __future__ import annotations

import json
import time
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradian.report.escape import (
    EXCERPT,
    encodable,
    fenced,
    markdown_cell,
    markdown_code,
    markdown_prose,
    quoted,
    visible,
)

from .hostile import ATTACKS, EVERYTHING, TEXTS, codes, kinds, parse

ACTIVE = {
    "html_block",
    "html_inline",
    "link_open",
    "image",
    "heading_open",
    "fence",
    "code_block",
    "hr",
    "em_open",
    "strong_open",
    "s_open",
    "blockquote_open",
    "ordered_list_open",
    "table_open",
}


class TestVisible:
    @given(TEXTS)
    def test_the_result_is_one_bounded_line_of_printable_characters(self, text: str) -> None:
        shown = visible(text)
        assert len(shown) <= EXCERPT
        assert shown.isprintable()
        assert not any(unicodedata.category(char) in ("Cc", "Cf", "Cs") for char in shown)

    @given(TEXTS)
    def test_showing_twice_changes_nothing(self, text: str) -> None:
        assert visible(visible(text)) == visible(text)

    @pytest.mark.parametrize(
        ("text", "shown"),
        [
            ("a\x1b[31mb", "a\\x1b[31mb"),
            ("a\u202eb", "a\\u202eb"),
            ("a\u200bb\ufe0f", "a\\u200bb\\ufe0f"),
            ("a\x9bb", "a\\x9bb"),
            ("a\ud800b", "a\\ud800b"),
            ("\U000e0041", "\\U000e0041"),
            ("a\u2028b", "a\\u2028b"),
            ("  a \r\n\t b\u00a0 ", "a b"),
            ("Z" + "\u0301" * 10 + "a\u0301", "Z" + "\u0301" * 8 + "\\u0301\\u0301a\u0301"),
            ("\u20dd" * 9, "\u20dd" * 8 + "\\u20dd"),
            ("", ""),
        ],
    )
    def test_hidden_characters_are_written_out_and_white_space_is_one_space(
        self, text: str, shown: str
    ) -> None:
        assert visible(text) == shown

    def test_text_of_exactly_the_limit_is_not_cut(self) -> None:
        assert visible("x" * 200) == "x" * 200
        assert visible("x" * 201) == "x" * 199 + "…"

    def test_a_cut_never_splits_an_escape(self) -> None:
        assert visible("x" * 195 + "\u202e" * 3) == "x" * 195 + "…"
        assert visible("x" * 194 + "\u202e") == "x" * 194 + "\\u202e"

    def test_a_huge_row_of_blanks_is_marked_as_cut(self) -> None:
        assert visible(" " * 10**6 + "x") == "…"

    @given(st.text(st.sampled_from("ab \u202e"), max_size=30), st.integers(1, 12))
    def test_a_cut_result_is_a_prefix_of_the_whole_with_an_ellipsis(self, text: str, limit: int) -> None:
        whole, cut = visible(text, None), visible(text, limit)
        assert len(cut) <= limit
        assert cut == whole or (cut.endswith("…") and whole.startswith(cut[:-1]))


class TestMarkdown:
    @given(TEXTS)
    def test_a_code_span_shows_the_text_and_nothing_else(self, text: str) -> None:
        document = f"- {markdown_code(text)} end"
        if visible(text):
            assert codes(document) == [visible(text)]
            assert not kinds(document) & ACTIVE
        else:
            assert codes(document) == []

    @given(TEXTS, TEXTS)
    def test_a_table_cell_shows_the_text_and_ends_no_cell(self, left: str, right: str) -> None:
        document = f"| a | b |\n| --- | --- |\n| {markdown_cell(left)} | {markdown_cell(right)} |"
        assert codes(document) == [shown for shown in (visible(left), visible(right)) if shown]
        assert sum(token.type == "td_open" for token in parse(document)) == 2
        assert not kinds(document) & (ACTIVE - {"table_open", "em_open"})

    @given(TEXTS)
    def test_prose_is_text_and_code_only(self, text: str) -> None:
        for document in (f"- {markdown_prose(text)}", f"{markdown_prose(text)} end"):
            assert not kinds(document) & ACTIVE

    @given(st.text(st.sampled_from("abc ,.()`*_[]<>&|$~\\"), max_size=40))
    def test_prose_loses_no_character(self, text: str) -> None:
        tokens = parse(f"x {markdown_prose(text)}")
        shown = "".join(
            token.content for token in tokens if token.type in ("text", "text_special", "code_inline")
        )
        assert shown.replace(" ", "").replace("`", "") == ("x" + visible(text, None)).replace(
            " ", ""
        ).replace("`", "")

    def test_prose_keeps_code_between_backticks(self) -> None:
        assert markdown_prose("set `a_b` to **2**, [or] `x") == "set `a_b` to \\*\\*2\\*\\*, \\[or\\] \\`x"

    @pytest.mark.parametrize(
        "word",
        [
            "https://evil.test/x",
            "www.evil.test",
            "a@evil.test",
            "@team",
            "org/repo#1",
            "(#1)",
            "GH-1",
            ":shipit:",
        ],
    )
    def test_words_that_github_links_become_code(self, word: str) -> None:
        assert markdown_prose(f"see {word} now") == f"see `{word}` now"

    @pytest.mark.parametrize("start", ["# a", "- a", "+ a", "1. a", "2) a", "--- ", "=== "])
    def test_prose_opens_no_block(self, start: str) -> None:
        assert not kinds(f"- {markdown_prose(start)}") & {"heading_open", "ordered_list_open", "hr"}
        assert sum(token.type == "bullet_list_open" for token in parse(f"- {markdown_prose(start)}")) == 1

    @given(TEXTS)
    def test_nothing_leaves_a_fenced_block(self, text: str) -> None:
        block = json.dumps({"key": text}, indent=2)
        tokens = parse(f"before\n\n{fenced(block, 'json')}\n\nafter")
        fences = [token.content for token in tokens if token.type == "fence"]
        assert fences == [block + "\n"]

    def test_a_fence_is_longer_than_any_inside(self) -> None:
        tokens = parse(fenced("```\n# out\n````"))
        assert [(token.type, token.content) for token in tokens] == [("fence", "```\n# out\n````\n")]

    @pytest.mark.parametrize("attack", ATTACKS)
    def test_each_known_attack_is_inert_at_the_start_of_a_line(self, attack: str) -> None:
        for document in (markdown_prose(attack), markdown_prose(attack + " x"), markdown_code(attack)):
            assert not kinds(document) & (ACTIVE - {"em_open"})
            assert "bullet_list_open" not in kinds(document)

    def test_a_quoted_name_is_one_code_span_whatever_it_holds(self) -> None:
        for attack in (*ATTACKS, EVERYTHING):
            assert len(codes(f"- {markdown_prose(f'cluster {quoted(attack)} leads')}")) == 1


class TestEncodable:
    @given(TEXTS)
    def test_any_text_can_be_written_as_utf8(self, text: str) -> None:
        encodable(text).encode("utf-8")

    def test_ordinary_text_stays_as_it_is(self) -> None:
        assert encodable("漢 é \x1b") == "漢 é \x1b"


@pytest.mark.parametrize("text", ["a" * 100_000, "`" + "a" * 100_000, "`a" * 50_000, ":a" * 50_000])
def test_prose_of_one_long_word_costs_no_time(text: str) -> None:
    start = time.process_time()
    markdown_prose(text)
    assert time.process_time() - start < 2
