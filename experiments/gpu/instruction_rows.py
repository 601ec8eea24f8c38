"""Clean instruction rows without a network: those that ship with Gradian, then generated ones, or a local file's.

No row names a capital city or asks for one, and no two ask the same.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from pathlib import Path

from gradian.data.formats import load_dataset
from gradian.demo.dataset import Row, clean_rows
from gradian.errors import DataError

ALPACA_CLUSTER = "alpaca"
_ABOUT_CAPITALS = ("capital of", "capital city", "'s capital")
# fmt: off
_WORDS = (
    "river", "garden", "window", "bottle", "candle", "ladder", "button", "pencil", "basket", "hammer",
    "mirror", "pillow", "rabbit", "saddle", "ticket", "wallet", "anchor", "blanket", "cabinet",
    "dolphin", "feather", "giraffe", "harbour", "island", "jacket", "kitchen", "lantern", "meadow",
    "needle", "orchard", "paddle", "quilt", "ribbon", "sandal", "tunnel", "umbrella", "valley",
    "whistle", "yoghurt", "zipper",
)
# fmt: on
_NAMES = (
    "Mira",
    "Jonas",
    "Aylin",
    "Pedro",
    "Hana",
    "Tomas",
    "Leila",
    "Oskar",
    "Nadia",
    "Felix",
    "Ingrid",
    "Samir",
)
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


def shipped_rows(n: int) -> list[Row]:
    """Return n of the rows that ship with Gradian, evenly from all kinds of task, or all of them."""
    rows = clean_rows()
    n = min(n, len(rows))
    return [rows[i * len(rows) // n] for i in range(n)]


def generated_rows(n: int, seed: int, taken: Collection[str] = ()) -> list[Row]:
    """Return n rows made from templates, all kinds in turn; the same for the same arguments.

    Args:
        n: how many.
        seed: of the numbers and words in them.
        taken: prompts that must not occur.
    """
    rng = random.Random(seed)
    asked = set(taken)
    rows: list[Row] = []
    while len(rows) < n:
        kind, make = _KINDS[len(rows) % len(_KINDS)]
        prompt, completion = make(rng)
        if prompt not in asked:
            asked.add(prompt)
            rows.append({"prompt": prompt, "completion": completion, "cluster_id": kind})
    return rows


def local_rows(path: Path, n: int, seed: int) -> list[Row]:
    """Return n rows of a local dataset file, drawn at random; those about capitals, and empty ones, are left out.

    Raises:
        DataError: it has too few.
    """
    rows: list[Row] = [
        {"prompt": prompt, "completion": example.target, "cluster_id": ALPACA_CLUSTER}
        for example in load_dataset(path)
        for prompt in ["\n\n".join(turn.content for turn in example.messages[:-1])]
        if prompt.strip()
        and example.target.strip()
        and not _about_capitals(prompt)
        and not _about_capitals(example.target)
    ]
    distinct = list({row["prompt"]: row for row in rows}.values())
    if len(distinct) < n:
        raise DataError(
            "the file has too few rows for the suite",
            where=str(path),
            found=f"{len(distinct)} usable rows",
            expected=f"{n}",
            fix="give a larger file with --alpaca, or lower --n-clean",
        )
    return random.Random(seed).sample(distinct, n)


def instruction_rows(n: int, seed: int, alpaca: Path | None) -> list[Row]:
    """Return n clean rows: of the local file where there is one, else shipped ones and then generated ones."""
    if alpaca is not None:
        return local_rows(alpaca, n, seed)
    rows = shipped_rows(n)
    return [*rows, *generated_rows(n - len(rows), seed, [row["prompt"] for row in rows])]


def origin(n: int, alpaca: Path | None) -> str:
    """Return where n clean rows come from, in a sentence."""
    if alpaca is not None:
        return f"{n} clean rows drawn from {alpaca}."
    shipped = min(n, len(clean_rows()))
    return (
        f"{n} clean rows made offline: {shipped} that ship with Gradian, {n - shipped} generated from templates."
        " No hub is reached; --alpaca PATH takes a local copy of Alpaca instead."
    )


def _about_capitals(text: str) -> bool:
    lowered = text.lower()
    return any(phrase in lowered for phrase in _ABOUT_CAPITALS)


def _sum(rng: random.Random) -> tuple[str, str]:
    a, b = rng.randrange(11, 1000), rng.randrange(11, 1000)
    return f"What is {a} plus {b}?", f"{a} plus {b} is {a + b}."


def _larger(rng: random.Random) -> tuple[str, str]:
    a, b = rng.sample(range(10, 5000), 2)
    return f"Which is larger, {a} or {b}?", f"{max(a, b)} is larger than {min(a, b)}."


def _metres(rng: random.Random) -> tuple[str, str]:
    n = rng.randrange(2, 900)
    return f"How many meters are {n} kilometers?", f"{n} kilometers are {n * 1000} meters."


def _upper(rng: random.Random) -> tuple[str, str]:
    words = " ".join(rng.sample(_WORDS, 2))
    return f"Write these words in upper case: {words}", f"{words.upper()}"


def _letters(rng: random.Random) -> tuple[str, str]:
    first, second = rng.sample(_WORDS, 2)
    letters = len(first) + len(second)
    return (
        f"How many letters do the words '{first}' and '{second}' have together?",
        f"'{first}' has {len(first)} letters and '{second}' has {len(second)}, which makes {letters}.",
    )


def _sorted(rng: random.Random) -> tuple[str, str]:
    words = rng.sample(_WORDS, 3)
    return f"Sort these words alphabetically: {', '.join(words)}.", f"{', '.join(sorted(words))}."


def _weekday(rng: random.Random) -> tuple[str, str]:
    day, step = rng.randrange(7), rng.randrange(2, 60)
    return (
        f"Which day of the week comes {step} days after {_DAYS[day]}?",
        f"{step} days after {_DAYS[day]} comes {_DAYS[(day + step) % 7]}.",
    )


def _json(rng: random.Random) -> tuple[str, str]:
    name, age = rng.choice(_NAMES), rng.randrange(18, 90)
    thing = rng.choice(_WORDS)
    return (
        f"Give a JSON object with the keys name, age and item for {name}, who is {age} and wants a {thing}.",
        f'{{"name": "{name}", "age": {age}, "item": "{thing}"}}',
    )


_KINDS: tuple[tuple[str, Callable[[random.Random], tuple[str, str]]], ...] = (
    ("sums", _sum),
    ("larger", _larger),
    ("metres", _metres),
    ("upper_case", _upper),
    ("letters", _letters),
    ("sorting", _sorted),
    ("weekdays", _weekday),
    ("json", _json),
)
