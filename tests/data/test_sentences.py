from __future__ import annotations

import time
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerBase

from gradian.data.chat import ChatEncoder
from gradian.data.sentences import sentence_spans, sentence_starts, token_pieces
from gradian.types import EncodedExample, Example, Message
from tests.conftest import make_tokenizer

TOKENIZER = make_tokenizer()


def sentences(text: str) -> list[str]:
    starts = [*sentence_starts(text), len(text)]
    return [text[a:b] for a, b in pairwise(starts)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One. Two! Three? Four", ["One. ", "Two! ", "Three? ", "Four"]),
        ('He said "Stop." Then he left.', ['He said "Stop." ', "Then he left."]),
        (
            "Dr. J. Smith lives in St. Gallen. It is old.",
            ["Dr. J. Smith lives in St. Gallen. ", "It is old."],
        ),
        ("It cost 3.50 euros. cheap", ["It cost 3.50 euros. cheap"]),
        ("Steps:\n1. Mix it.\n2. Bake it.", ["Steps:\n", "1. Mix it.\n", "2. Bake it."]),
        ("Wait... Really?! Yes.", ["Wait... ", "Really?! ", "Yes."]),
        (
            "\u6771\u4eac\u306f\u9996\u90fd\u3002\u53e4\u3044\u3002",
            ["\u6771\u4eac\u306f\u9996\u90fd\u3002", "\u53e4\u3044\u3002"],
        ),
        ("a\n\n\nb", ["a\n\n\n", "b"]),
        ("", [""]),
        ("no mark at all", ["no mark at all"]),
    ],
)
def test_a_text_falls_into_its_sentences(text: str, expected: list[str]) -> None:
    assert sentences(text) == expected


@given(st.text(alphabet=st.sampled_from('aB .!?\n"1\u3002'), max_size=40))
def test_sentences_cover_the_text_and_none_is_empty(text: str) -> None:
    assert "".join(sentences(text)) == text
    assert all(sentences(text)) or not text


@given(st.text(max_size=30))
def test_the_pieces_of_tokens_spell_the_text(text: str) -> None:
    ids = TOKENIZER(text, add_special_tokens=False)["input_ids"]
    pieces = token_pieces(TOKENIZER, ids)
    assert len(pieces) == len(ids)
    assert "".join(pieces) == TOKENIZER.decode(ids, clean_up_tokenization_spaces=False)


def test_a_character_of_several_tokens_belongs_to_the_last_of_them() -> None:
    ids = TOKENIZER("\u00e9!", add_special_tokens=False)["input_ids"]
    assert token_pieces(TOKENIZER, ids) == ["", "\u00e9", "!"]


def encoded_row(tokenizer: PreTrainedTokenizerBase, *turns: str) -> EncodedExample:
    messages = tuple(
        Message("user" if number % 2 == 0 else "assistant", turn) for number, turn in enumerate(turns)
    )
    return ChatEncoder(tokenizer, 512).encode(Example("row", 0, "messages", messages))


def test_every_supervised_token_is_in_one_span_and_no_other_token_in_any(
    tiny_tokenizer: PreTrainedTokenizerBase,
) -> None:
    encoded = encoded_row(tiny_tokenizer, "Hi. You?", "Fine. And you?", "Well.", "Good.\nBye.")
    covered = np.zeros(len(encoded), dtype=int)
    spans = sentence_spans(tiny_tokenizer, encoded)
    for span in spans:
        covered[span.start : span.end] += 1
    assert covered.tolist() == encoded.supervised.astype(int).tolist()
    assert [span.text for span in spans] == [
        "Fine. ",
        "And you?",
        "<|im_end|>",
        "Good.\n",
        "Bye.",
        "<|im_end|>",
    ]


def test_a_token_that_begins_with_a_space_belongs_to_the_word_after_it() -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.WordLevel({"[UNK]": 0, "One.": 1, "\u0120Two.": 2}, unk_token="[UNK]"))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    core.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, unk_token="[UNK]")
    encoded = EncodedExample("x", 0, np.array([0, 1, 2]), np.array([False, True, True]))
    assert [(span.start, span.text) for span in sentence_spans(tokenizer, encoded)] == [
        (1, "One."),
        (2, " Two."),
    ]


@pytest.mark.parametrize("text", ["!" * 200_000 + "x", "!)" * 100_000 + "x", "A. " * 70_000, "\n" * 200_000])
def test_a_text_of_nothing_but_marks_costs_no_time(text: str) -> None:
    start = time.process_time()
    sentence_starts(text)
    sentence_starts(text + "1. B")
    assert time.process_time() - start < 1


def test_a_full_stop_after_a_number_that_begins_a_line_ends_no_sentence() -> None:
    assert sentences("a\n \n 12. B") == ["a\n \n ", "12. B"]
    assert sentences(" 7. B") == [" 7. B"]
    assert sentences("x 7. B") == ["x 7. ", "B"]
    assert sentences("a\n1234. B") == ["a\n", "1234. ", "B"]
