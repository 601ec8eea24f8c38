"""The figures: what the scores foretell, held against what the retrainings did.

The sign follows from that of the scores (`gradian.query.scorer`): a positive score says that the row reinforces the
answer, and that the query's loss rises by score / n when the row is dropped. So the predicted change of a query's loss
is the sum of score / n over the rows that a retraining dropped, and a ranking that is right has a positive rank
correlation with the real losses. The same holds for the difference of the right and the wrong answer's losses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import numpy.typing as npt

from experiments.fidelity.bank import Bank, Record
from experiments.fidelity.dataset import SENTIMENT, BenchData
from experiments.fidelity.metrics import (
    Estimate,
    mean,
    mean_spearman,
    recall_of_lowest,
    resampled_auc,
    resampled_recall,
    spearman_rows,
)
from experiments.fidelity.plan import RANDOM_TAILS, random_tail, whole, without_rows
from experiments.fidelity.scoring import (
    DEFAULT_LAMBDA,
    LAMBDAS,
    ScoreTables,
    bm25,
    datainf_table,
    variant_table,
    with_contrasts,
)
from experiments.fidelity.tails import Tail, TailQuery, tails
from gradian.demo.dataset import PLANTED_CLUSTER
from gradian.demo.run import auc_of_lowest
from gradian.query.scorer import predicted_loss_delta_if_removed, relative_influence
from gradian.types import BoolArray, FloatArray, IntArray

ENGINE_TABLES = {
    f"datainf, λ scale {DEFAULT_LAMBDA:g} (default)": datainf_table(DEFAULT_LAMBDA),
    "graddot": "graddot",
    "tracin": "tracin",
}
BASELINES = ("gradient cosine", "representation similarity", "BM25", "random")
_RANDOM_SEED = 3
# Which queries and retrainings: a damping is chosen on one half of both and reported on the other.
Part = Literal["all", "choosing", "reported"]


@dataclass(frozen=True, eq=False)
class Ranking:
    """One way to score rows.

    Attributes:
        name: of the engine or baseline.
        kind: `raw`, `relative`, or empty where there is no such distinction.
        values: float64 [queries, n].
    """

    name: str
    kind: str
    values: FloatArray


@dataclass(frozen=True)
class Foretold:
    """How well one ranking foretells retrainings.

    Attributes:
        name, kind: of the ranking.
        averaged: whether queries are averages over a topic's questions.
        lds: over random halves of the rows, under the seed of the scored adapter.
        other_seed: the same against the retrainings under the other seed.
        contrast: LDS of the right less the wrong answer's loss, over topics with wrong rows.
        without_topic: over retrainings that leave one topic out.
    """

    name: str
    kind: str
    averaged: bool
    lds: Estimate
    other_seed: Estimate
    contrast: Estimate
    without_topic: Estimate


@dataclass(frozen=True)
class Found:
    """How well one ranking finds the wrong rows, by their being the lowest.

    Attributes:
        name, kind: of the ranking.
        averaged: whether the query is the average over the topic's questions, or each question's own.
        contrastive: whether the query is the right less the wrong answer's loss, or the right one's alone.
        planted: AUC of planted rows against all others.
        planted_recall: share of them among the lowest rows, as many as there are planted ones.
        flipped: AUC of rows with flipped labels against the other rows of their topic.
        flipped_everywhere: against all other rows.
    """

    name: str
    kind: str
    averaged: bool
    contrastive: bool
    planted: Estimate
    planted_recall: Estimate
    flipped: Estimate
    flipped_everywhere: Estimate


@dataclass(frozen=True)
class Patched:
    """What the removal of the first 1% of a ranking did.

    Attributes:
        name, kind: of the ranking; `random` has no kind.
        averaged: see `Found`.
        raised: mean change of the right answer's loss when the most reinforcing rows are gone; None if not made.
        lowered: mean change of the right less the wrong answer's loss when the most harmful rows are gone; made
            of averaged queries only.
    """

    name: str
    kind: str
    averaged: bool
    raised: Estimate | None
    lowered: Estimate | None


class Evidence:
    """A bank, its scores and its data, as arrays over the same queries and rows.

    Args:
        bank: the retrainings.
        scores: of the adapter on all rows.
        data: the rows and the questions.
        seeds: of the scored adapter, and the other one.
        plan_seed: of the bank.
    """

    def __init__(
        self, bank: Bank, scores: ScoreTables, data: BenchData, seeds: tuple[int, int], plan_seed: int
    ) -> None:
        self.bank, self.scores, self.data, self.seeds, self.plan_seed = bank, scores, data, seeds, plan_seed
        self.topics = np.array(data.query_topics)
        self.n_asked = len(data.questions)

    def values(self, record: Record) -> FloatArray:
        """Return the measured value of each query: a loss, or the right less the wrong answer's."""
        return with_contrasts(record.losses.astype(np.float64), self.data)

    def subset_numbers(self, seed: int) -> list[int]:
        """Return which random halves were trained on under a seed."""
        names = (name.split("/") for name in self.bank.records)
        return sorted(int(parts[1]) for parts in names if parts[0] == "subset" and int(parts[2]) == seed)

    def _stacked(self, records: Sequence[Record]) -> tuple[FloatArray, BoolArray]:
        """Return the values [queries, K] and the dropped rows [K, n] of some retrainings."""
        values = np.stack([self.values(record) for record in records], axis=1)
        return values, ~np.stack([record.kept for record in records])

    def halves(self, seed: int, numbers: Sequence[int]) -> tuple[FloatArray, BoolArray]:
        """Return values [queries, K] and dropped rows [K, n] of these random halves."""
        return self._stacked([self.bank.records[f"subset/{k:03}/{seed}"] for k in numbers])

    def without_topics(self, seed: int) -> tuple[FloatArray, BoolArray]:
        """Return values and dropped rows of the retrainings that leave a topic out."""
        wanted = [
            record for record in self.bank if record.name.startswith("without/") and record.seed == seed
        ]
        return self._stacked(wanted)

    @cached_property
    def whole(self) -> FloatArray:
        """The value of each query after the training on all rows that was scored."""
        return self.values(self.bank.records[whole(self.bank.n, self.seeds[0]).name])

    def averages(self, contrastive: bool) -> list[IntArray]:
        """Return, for each topic, which queries are averaged: those of the right answers, or of the differences."""
        right = np.arange(len(self.topics)) < self.n_asked
        picked = [
            np.flatnonzero((self.topics == topic) & (right != contrastive))
            for topic in dict.fromkeys(self.topics)
        ]
        return [queries for queries in picked if len(queries)]

    def singles(self, contrastive: bool) -> list[IntArray]:
        """Return each query by itself, in the same form."""
        start, stop = (self.n_asked, len(self.topics)) if contrastive else (0, self.n_asked)
        return [np.array([i]) for i in range(start, stop)]

    def groups(self, averaged: bool, contrastive: bool) -> list[IntArray]:
        """Return the queries to be held against retrainings, each as the rows of a table that are averaged."""
        return self.averages(contrastive) if averaged else self.singles(contrastive)

    @cached_property
    def rankings(self) -> list[Ranking]:
        """Every engine, raw and relative, and the baselines."""
        tables = {name: self.scores.tables[table] for name, table in ENGINE_TABLES.items()}
        found = [ranking for name, table in tables.items() for ranking in self.both_kinds(name, table)]
        texts = [_text(row["messages"]) for row in self.data.rows]
        asked = [f"{question.prompt} {question.expected}" for question in self.data.questions]
        asked += [
            f"{self.data.questions[i].prompt} {self.data.questions[i].marker}" for i in self.data.marked
        ]
        graddot = self.both_kinds("graddot", self.scores.tables["graddot"])[1].values
        drawn = np.random.default_rng(_RANDOM_SEED)
        baselines = (
            graddot / np.maximum(self.scores.query_norms.astype(np.float64), 1e-30)[:, None],
            self.scores.tables["representation"].astype(np.float64),
            with_contrasts(bm25(asked, texts), self.data),
            drawn.standard_normal((len(self.topics), self.bank.n)),
        )
        return found + [Ranking(name, "", values) for name, values in zip(BASELINES, baselines, strict=True)]

    def both_kinds(self, name: str, table: npt.NDArray[np.float32]) -> list[Ranking]:
        """Return an engine's scores as they are, and divided by each row's gradient norm."""
        raw = table.astype(np.float64)
        relative = relative_influence(raw, self.scores.norms.astype(np.float64))
        return [Ranking(name, "raw", raw), Ranking(name, "relative", relative)]

    def wanted(self, topic: str) -> BoolArray:
        """Return the wrong rows of a topic, [n]."""
        return self.data.planted if topic == PLANTED_CLUSTER else self.data.flipped


def _text(turns: Sequence[Mapping[str, str]]) -> str:
    return " ".join(turn["content"] for turn in turns if turn["role"] != "system")


def averaged_rows(values: FloatArray, groups: Sequence[IntArray]) -> FloatArray:
    """Return the means of groups of rows, [groups, ...]."""
    return np.stack([values[group].mean(axis=0) for group in groups])


def predicted(scores: FloatArray, dropped: BoolArray) -> FloatArray:
    """Return the predicted change of each query's loss in each retraining, [queries, K].

    Args:
        scores: [queries, n].
        dropped: [K, n].
    """
    n = scores.shape[1]
    return predicted_loss_delta_if_removed(scores, n) @ dropped.T.astype(np.float64)


def _part(numbers: Sequence[int], part: Part) -> list[int]:
    """Return the even numbers to choose on, the odd ones to report, or all."""
    return [k for k in numbers if part == "all" or (part == "reported") == (k % 2 == 1)]


def halves_lds(
    evidence: Evidence,
    values: FloatArray,
    seed: int,
    *,
    averaged: bool,
    contrastive: bool,
    part: Part = "all",
) -> Estimate:
    """Return the LDS of scores over queries and random halves of the rows.

    Args:
        evidence: the bank.
        values: scores, [queries, n].
        seed: of the retrainings.
        averaged: whether queries are averages over topics.
        contrastive: whether values are differences of two answers' losses.
        part: of the queries and of the retrainings.
    """
    groups = evidence.groups(averaged, contrastive)
    groups = [groups[i] for i in _part(range(len(groups)), part)]
    real, dropped = evidence.halves(seed, _part(evidence.subset_numbers(seed), part))
    return mean_spearman(predicted(averaged_rows(values, groups), dropped), averaged_rows(real, groups))


def topic_spearman(evidence: Evidence, values: FloatArray, seed: int, *, averaged: bool) -> Estimate:
    """Return the mean rank correlation over retrainings that leave a topic out."""
    groups = evidence.groups(averaged, contrastive=False)
    real, dropped = evidence.without_topics(seed)
    return mean_spearman(predicted(averaged_rows(values, groups), dropped), averaged_rows(real, groups))


def foretold(evidence: Evidence, ranking: Ranking, *, averaged: bool) -> Foretold:
    """Hold one ranking against the retrainings."""
    first, second = evidence.seeds
    values = ranking.values
    return Foretold(
        ranking.name,
        ranking.kind,
        averaged,
        halves_lds(evidence, values, first, averaged=averaged, contrastive=False),
        halves_lds(evidence, values, second, averaged=averaged, contrastive=False),
        halves_lds(evidence, values, first, averaged=averaged, contrastive=True),
        topic_spearman(evidence, values, first, averaged=averaged),
    )


def ceiling(evidence: Evidence, *, averaged: bool) -> Foretold:
    """Hold the retrainings under the other seed against those under the first: what a perfect ranking could reach."""
    first, second = evidence.seeds
    numbers = evidence.subset_numbers(second)
    both = [evidence.halves(seed, numbers)[0] for seed in (first, second)]
    topics = [evidence.without_topics(seed)[0] for seed in (first, second)]
    figures = []
    for (one, other), contrastive in ((both, False), (both, True), (topics, False)):
        groups = evidence.groups(averaged, contrastive)
        figures.append(mean_spearman(averaged_rows(other, groups), averaged_rows(one, groups)))
    lds, contrast, without_topic = figures
    return Foretold("the same retrainings, other seed", "", averaged, lds, lds, contrast, without_topic)


@dataclass(frozen=True)
class Chosen:
    """DataInf under the damping that was chosen on one half of the queries and retrainings, on the other half.

    Attributes:
        kind: `raw` or `relative`.
        averaged: whether queries are averages over topics.
        scale: the `lambda_scale` that was chosen.
        lds: under it.
        default: under the default damping.
        graddot: of grad-dot.
    """

    kind: str
    averaged: bool
    scale: float
    lds: Estimate
    default: Estimate
    graddot: Estimate


def chosen_damping(evidence: Evidence, kind: str, *, averaged: bool) -> Chosen:
    """Choose the `lambda_scale` with the best LDS on one half, and report it on the other."""

    def lds(table: str, part: Part) -> Estimate:
        rankings = evidence.both_kinds("", evidence.scores.tables[table])
        values = next(ranking.values for ranking in rankings if ranking.kind == kind)
        return halves_lds(
            evidence, values, evidence.seeds[0], averaged=averaged, contrastive=False, part=part
        )

    scale = max(LAMBDAS, key=lambda scale: lds(datainf_table(scale), "choosing").value)
    tables = (datainf_table(scale), datainf_table(DEFAULT_LAMBDA), "graddot")
    return Chosen(kind, averaged, scale, *(lds(table, "reported") for table in tables))


def found(evidence: Evidence, ranking: Ranking, *, averaged: bool, contrastive: bool) -> Found:
    """Look for the wrong rows at the low end of a ranking."""
    topics = np.array(evidence.data.topics)
    everywhere = np.ones(len(topics), dtype=np.bool_)
    planted = _searched(evidence, ranking, PLANTED_CLUSTER, everywhere, averaged, contrastive)
    flipped = _searched(evidence, ranking, SENTIMENT, topics == SENTIMENT, averaged, contrastive)
    flipped_everywhere = _searched(evidence, ranking, SENTIMENT, everywhere, averaged, contrastive)
    return Found(
        ranking.name, ranking.kind, averaged, contrastive, *planted, flipped[0], flipped_everywhere[0]
    )


def _searched(
    evidence: Evidence, ranking: Ranking, topic: str, among: BoolArray, averaged: bool, contrastive: bool
) -> tuple[Estimate, Estimate]:
    """Return AUC and recall of a topic's wrong rows among some rows.

    The interval of one query is over rows, and that of several is over queries.
    """
    groups = [group for group in evidence.groups(averaged, contrastive) if evidence.topics[group[0]] == topic]
    scores = averaged_rows(ranking.values, groups)[:, among]
    wanted = evidence.wanted(topic)[among]
    if len(scores) == 1:
        return resampled_auc(scores[0], wanted), resampled_recall(scores[0], wanted)
    aucs = np.array([auc_of_lowest(row, wanted) for row in scores])
    return mean(aucs), mean(np.array([recall_of_lowest(row, wanted) for row in scores]))


def patched(evidence: Evidence) -> list[Patched]:
    """Return what tail patches did, for each engine, and for rows drawn at random.

    A query counts when the bank has the retrainings of all rankings for it.
    """
    n, seed = evidence.bank.n, evidence.seeds[0]
    by_query: dict[TailQuery, list[tuple[Tail, Record | None]]] = {}
    for tail in tails(evidence.scores, evidence.data):
        record = evidence.bank.records.get(without_rows(n, tail.rows, seed).name)
        by_query.setdefault(tail.query, []).append((tail, record))
    whole_queries = [query for query, made in by_query.items() if all(record for _, record in made)]
    changes: dict[tuple[str, str, bool, bool], list[float]] = {}
    for query in whole_queries:
        for tail, record in by_query[query]:
            assert record is not None
            change = (evidence.values(record) - evidence.whole)[list(query.queries)].mean()
            key = (tail.engine, "relative" if tail.relative else "raw", query.averaged, query.harmful)
            changes.setdefault(key, []).append(float(change))
    drawn = [
        evidence.values(
            evidence.bank.records[without_rows(n, random_tail(n, i, evidence.plan_seed), seed).name]
        )
        for i in range(RANDOM_TAILS)
    ]
    at_random = np.mean(drawn, axis=0) - evidence.whole
    for query in whole_queries:
        key = ("random", "", query.averaged, query.harmful)
        changes.setdefault(key, []).append(float(at_random[list(query.queries)].mean()))
    rows = dict.fromkeys((name, kind, averaged) for name, kind, averaged, _ in changes)
    return [
        Patched(
            *row,
            *(
                mean(np.array(changes[(*row, harmful)])) if (*row, harmful) in changes else None
                for harmful in (False, True)
            ),
        )
        for row in rows
    ]


def seed_agreement(evidence: Evidence) -> float:
    """Return the mean over questions of the rank correlation between the two seeds, all random halves taken."""
    numbers = evidence.subset_numbers(evidence.seeds[1])
    one, other = (evidence.halves(seed, numbers)[0][: evidence.n_asked] for seed in evidence.seeds)
    return float(spearman_rows(one, other).mean())


@dataclass(frozen=True)
class Sweep:
    """One engine over one store or under one damping.

    Attributes:
        name: of the damping or the store.
        engine: of the engine.
        stored: bytes of the store, 0 where it is the exact one.
        lds: of single questions, raw scores.
        relative_lds: the same of relative scores.
        planted: AUC of planted rows, raw scores, averaged contrastive query.
    """

    name: str
    engine: str
    stored: int
    lds: Estimate
    relative_lds: Estimate
    planted: Estimate


def damping_sweep(evidence: Evidence) -> list[Sweep]:
    """Return DataInf under every damping."""
    return [
        _swept(evidence, f"{scale:g}", "datainf", 0, evidence.scores.tables[datainf_table(scale)])
        for scale in LAMBDAS
    ]


def store_sweep(evidence: Evidence) -> list[Sweep]:
    """Return engines over every store: exact, float16, projected; each under the default damping."""
    exact = {"datainf": datainf_table(DEFAULT_LAMBDA), "graddot": "graddot"}
    stores: Mapping[str, int] = evidence.scores.made_from["bytes"]
    return [
        _swept(
            evidence,
            name,
            engine,
            stored,
            evidence.scores.tables[exact[engine] if name == "exact" else variant_table(engine, name)],
        )
        for name, stored in sorted(stores.items(), key=lambda store: -store[1])
        for engine in exact
    ]


def _swept(evidence: Evidence, name: str, engine: str, stored: int, table: npt.NDArray[np.float32]) -> Sweep:
    raw, relative = evidence.both_kinds(engine, table)
    seed = evidence.seeds[0]
    planted = found(evidence, raw, averaged=True, contrastive=True).planted
    lds, relative_lds = (
        halves_lds(evidence, each.values, seed, averaged=False, contrastive=False) for each in (raw, relative)
    )
    return Sweep(name, engine, stored, lds, relative_lds, planted)
