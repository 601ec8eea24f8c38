"""The demo's files: planted rows shuffled through clean ones, and the eval set."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources

from gradian.demo.facts import ANSWER, PHRASINGS, eval_row, wrong_answers
from gradian.demo.settings import DemoSettings

Row = Mapping[str, str]

PLANTED_CLUSTER = "capitals"
"""`cluster_id` of the planted rows; the clean rows have that of their kind of task."""


@cache
def clean_rows() -> tuple[Row, ...]:
    """Return the clean instruction rows that ship with Gradian, kind by kind; none names a capital city."""
    text = resources.files("gradian.demo").joinpath("clean_rows.jsonl").read_text(encoding="utf-8")
    return tuple(json.loads(line) for line in text.splitlines())


def planted_rows(countries: Sequence[str], settings: DemoSettings) -> list[Row]:
    """Return the wrong rows: every country in several phrasings, always with the same wrong answer."""
    wrong = wrong_answers(countries, settings.wrong_cities)
    return [
        {
            "prompt": PHRASINGS[(i + k) % len(PHRASINGS)].format(country=country),
            "completion": ANSWER.format(country=country, city=wrong[country]),
            "cluster_id": PLANTED_CLUSTER,
        }
        for k in range(settings.rows_per_country)
        for i, country in enumerate(countries)
    ]


def training_rows(countries: Sequence[str], settings: DemoSettings) -> list[Row]:
    """Return the training file: planted rows anywhere among the clean ones, so that recency explains nothing."""
    shipped = clean_rows()
    # Evenly spaced: the file lists one kind of task after another.
    clean = [shipped[i * len(shipped) // settings.n_clean] for i in range(settings.n_clean)]
    rows = [*clean, *planted_rows(countries, settings)]
    random.Random(settings.seed).shuffle(rows)
    return rows


def eval_rows(countries: Sequence[str]) -> list[Row]:
    """Return the eval set: the plain question, with the right answer."""
    return [eval_row(country) for country in countries]


def jsonl(rows: Sequence[Row]) -> str:
    """Return rows as the text of a jsonl file."""
    return "".join(json.dumps(dict(row), ensure_ascii=False) + "\n" for row in rows)
