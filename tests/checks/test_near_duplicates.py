"""MinHash signatures against exact Jaccard similarity, and what banding finds of it."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradian.checks.near_duplicates import SIGNATURE, _bucket_pairs, groups, matches, sketch

VOCABULARY = [f"word{i}" for i in range(5000)]


def texts(n: int, words: int = 60, seed: int = 0) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choices(VOCABULARY, k=words)) for _ in range(n)]


def edited(text: str, places: int, seed: int = 0) -> str:
    words, rng = text.split(), random.Random(seed)
    for place in rng.sample(range(len(words)), places):
        words[place] = f"other{rng.getrandbits(40)}"
    return " ".join(words)


def jaccard(a: str, b: str) -> float:
    left, right = ({tuple(t.split()[i : i + 3]) for i in range(len(t.split()) - 2)} for t in (a, b))
    return len(left & right) / len(left | right)


def estimate(a: str, b: str) -> float:
    pair = sketch([a, b]).signatures
    return float((pair[0] == pair[1]).mean())


@pytest.mark.parametrize("places", [0, 1, 3, 8, 20])
def test_the_estimate_has_the_stated_standard_error(places: int) -> None:
    errors = []
    for seed, text in enumerate(texts(40, 150)):
        other = edited(text, places, seed)
        exact = jaccard(text, other)
        error = max((exact * (1 - exact) / SIGNATURE) ** 0.5, 1e-9)
        errors.append((estimate(text, other) - exact) / error)
    assert abs(float(np.mean(errors))) < 0.7  # Four standard errors of a mean of 40.
    assert float(np.std(errors)) < 1.6


def test_pairs_above_the_threshold_are_found_and_others_left_apart() -> None:
    base = texts(300, 100)
    near = [edited(text, 1, i) for i, text in enumerate(base[:100])]
    apart = [edited(text, 25, i) for i, text in enumerate(base[100:200])]
    group = groups(sketch([*base, *near, *apart]), 0.85)
    assert sum(group[300 + i] == group[i] for i in range(100)) >= 99
    assert len(set(group.tolist())) >= 400


@settings(max_examples=30)
@given(st.lists(st.text(max_size=40), max_size=8), st.randoms())
def test_a_signature_depends_on_its_own_text_alone(given_texts: list[str], rng: random.Random) -> None:
    whole = sketch(given_texts)
    order = list(range(len(given_texts)))
    rng.shuffle(order)
    shuffled = sketch(given_texts[i] for i in order)
    for place, i in enumerate(order):
        assert (shuffled.signatures[place] == whole.signatures[i]).all()
        assert shuffled.words[place] == whole.words[i]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("The cat, sat on a mat!", "the CAT sat\non a  mat", True),
        ("“The cat” — sat", "the cat sat", True),
        ("ab cd", "abc d", False),
        ("a b c", "c b a", False),
        ("今天天气很好\uff0c我们去公园。", "今天天气很好我们去公园", True),
        ("今天天气很好", "明天天气很好", False),
        ("\uff46\uff55\uff4c\uff4c \uff57idth", "full width", True),
        ("naïve café", "naive cafe", False),
    ],
)
def test_what_counts_as_the_same_words(one: str, other: str, same: bool) -> None:
    assert (estimate(one, other) == 1.0) is same


def test_words_of_scripts_with_and_without_spaces_are_counted() -> None:
    made = sketch(["今天。天气 x1y", "a今b", "не знаю", "it's 3.5", "\U0001f600\U0001f600"])
    assert made.words.tolist() == [5, 3, 2, 4, 2]


def test_texts_without_words_are_similar_to_nothing() -> None:
    made = sketch(["", "...", "\ud800", "a"])
    assert made.words.tolist()[:2] == [0, 0]
    assert len(set(groups(made, 0.5).tolist())) == 4
    assert matches(sketch([""]), made, 0.5).index.tolist() == [-1]
    assert len(groups(sketch([]), 0.5)) == 0
    assert matches(sketch(["a b c"]), sketch([]), 0.5).index.tolist() == [-1]


def test_matches_name_the_most_similar_text_and_how_crowded_its_bucket_is() -> None:
    base = texts(200)
    template = [f"{base[0]} {i}" for i in range(50)]
    found = matches(
        sketch([edited(base[7], 1), f"{base[0]} new", texts(1, seed=9)[0]]),
        sketch([*base[1:], *template]),
        0.85,
    )
    assert (found.index[0], found.crowd[0], found.index[2]) == (6, 1, -1)
    assert found.crowd[1] > 20


@pytest.mark.parametrize("n", [0, 1, 2, 3, 1000])
def test_one_bucket_with_everything_gives_two_comparisons_a_text_and_links_them_all(n: int) -> None:
    one_key = np.zeros(n, dtype=np.uint64)
    first, second = _bucket_pairs(np.arange(n), one_key, one_key)
    assert len(first) == max(0, n - 1) + max(0, n - 2)
    assert (first != second).all()
    assert {*first.tolist(), *second.tolist()} == set(range(n if n > 1 else 0))


def test_texts_that_all_share_their_buckets_are_one_group() -> None:
    made = sketch([f"the same text again and again for all of them {i % 3}" for i in range(3000)])
    assert len(set(groups(made, 0.5).tolist())) == 1
