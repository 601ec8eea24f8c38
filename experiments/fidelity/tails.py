"""Tail patches: the rows that a ranking puts first for a question, and what their removal ought to do to its loss."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from experiments.fidelity.dataset import BenchData
from experiments.fidelity.plan import tail_size
from experiments.fidelity.scoring import DEFAULT_LAMBDA, ScoreTables, datainf_table
from gradian.query.scorer import relative_influence
from gradian.types import FloatArray, IntArray

RANKED_BY = {"datainf": datainf_table(DEFAULT_LAMBDA), "graddot": "graddot", "tracin": "tracin"}


@dataclass(frozen=True)
class TailQuery:
    """What a tail patch is about.

    Attributes:
        name: for messages.
        averaged: whether it is the average over a topic's questions.
        queries: rows of a score table that are averaged.
        harmful: take the most negative rows, whose removal should lower the value, instead of the most positive
            ones, whose removal should raise it.
    """

    name: str
    averaged: bool
    queries: tuple[int, ...]
    harmful: bool


@dataclass(frozen=True, eq=False)
class Tail:
    """The rows that one ranking takes away for one query."""

    engine: str
    relative: bool
    query: TailQuery
    rows: IntArray


def tail_queries(data: BenchData) -> list[TailQuery]:
    """Return what tail patches are made for.

    By turns the average over a topic's questions and a topic's first question, of every second topic, by what
    reinforces the right answer. For each topic with wrong rows also the average, by what harms it, where the value
    is the loss of the right answer less that of the wrong one.
    """
    topics, n_asked = np.array(data.query_topics), len(data.questions)
    found = []
    for number, topic in enumerate(sorted(set(data.topics))):
        about = [int(i) for i in np.flatnonzero(topics == topic)]
        asked = tuple(i for i in about if i < n_asked)
        contrasted = tuple(i for i in about if i >= n_asked)
        if number % 2 == 0:
            averaged = number % 4 == 0
            found.append(TailQuery(topic, averaged, asked if averaged else asked[:1], harmful=False))
        if contrasted:
            found.append(TailQuery(topic, True, contrasted, harmful=True))
    return found


def tails(scores: ScoreTables, data: BenchData) -> Iterator[Tail]:
    """Yield the rows that each engine would take away for each query."""
    for query in tail_queries(data):
        for engine, table in RANKED_BY.items():
            values = scores.tables[table][list(query.queries)].astype(np.float64).mean(axis=0)
            for relative in (False, True):
                ranked = relative_influence(values, scores.norms.astype(np.float64)) if relative else values
                yield Tail(engine, relative, query, _first(ranked if query.harmful else -ranked, len(values)))


def _first(values: FloatArray, n: int) -> IntArray:
    return np.argsort(values, kind="stable")[: tail_size(n)].astype(np.int64)
