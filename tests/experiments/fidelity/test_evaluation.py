"""The figures of a bank that was made up so that the answers are known."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import spearmanr

from experiments.fidelity.bank import Bank, Record
from experiments.fidelity.dataset import BenchData, DatasetSettings, bench_data
from experiments.fidelity.evaluation import (
    Evidence,
    Ranking,
    ceiling,
    chosen_damping,
    foretold,
    found,
    halves_lds,
    patched,
    predicted,
)
from experiments.fidelity.plan import (
    RANDOM_TAILS,
    Retraining,
    random_tail,
    subsets,
    whole,
    without_rows,
    without_topics,
)
from experiments.fidelity.scoring import LAMBDAS, ScoreTables, datainf_table
from experiments.fidelity.tails import tails
from gradian.types import FloatArray

SEEDS = (1, 2)
PLAN_SEED = 11
K = 12


@pytest.fixture(scope="module")
def data() -> BenchData:
    return bench_data(DatasetSettings(rows_per_topic=2, queries_per_topic=2, n_countries=3, n_reviews=12))


def linear_evidence(data: BenchData, influence: FloatArray, noise: float = 0.0) -> Evidence:
    """A world in which losses are exactly linear in the dropped rows: score / n is what dropping a row adds."""
    n, m = len(data.rows), len(data.questions)
    drawn = np.random.default_rng(1)
    # Influence on the wrong answers, such that that of the differences is what is asked for.
    wrong = influence[list(data.marked)] - influence[m:]
    answers = np.concatenate([influence[:m], wrong])
    bank = Bank(Path("nowhere"), {}, n, tuple(f"{i}-{i}" for i in range(len(answers))))
    bad = np.where(np.arange(len(LAMBDAS)) == 2, 0.0, 30.0)
    tables = {
        datainf_table(scale): (influence + size * drawn.standard_normal(influence.shape)).astype(np.float32)
        for scale, size in zip(LAMBDAS, bad, strict=True)
    }
    tables |= {"graddot": influence.astype(np.float32), "tracin": (0.5 * influence).astype(np.float32)}
    tables["representation"] = drawn.standard_normal(influence.shape).astype(np.float32)
    scores = ScoreTables(
        tables,
        np.ones(n, dtype=np.float32),
        np.ones(len(influence), dtype=np.float32),
        {"bytes": {"exact": 100}},
    )
    evidence = Evidence(bank, scores, data, SEEDS, PLAN_SEED)

    def add(retraining: Retraining) -> None:
        dropped = (~retraining.kept).astype(np.float64)
        losses = 3.0 + answers @ dropped / n + noise * drawn.standard_normal(len(answers))
        bank.records[retraining.name] = Record(
            retraining.name, retraining.seed, retraining.kept, losses.astype(np.float32)
        )

    for seed in SEEDS:
        add(whole(n, seed))
        for retraining in (*without_topics(data.topics, seed), *subsets(n, range(K), seed, PLAN_SEED)):
            add(retraining)
    for i in range(RANDOM_TAILS):
        add(without_rows(n, random_tail(n, i, PLAN_SEED), SEEDS[0]))
    for tail in tails(scores, data):
        add(without_rows(n, tail.rows, SEEDS[0]))
    return evidence


def influence_on(data: BenchData) -> FloatArray:
    """Random influence, save that wrong rows harm their own topic's right answers against the wrong ones."""
    topics = np.array(data.query_topics)
    values = np.random.default_rng(0).standard_normal((len(topics), len(data.rows)))
    contrast = np.arange(len(topics)) >= len(data.questions)
    for topic, wrong in (("capitals", data.planted), ("sentiment", data.flipped)):
        values[np.ix_(contrast & (topics == topic), wrong)] -= 20.0
    return values


@pytest.fixture(scope="module")
def evidence(data: BenchData) -> Evidence:
    return linear_evidence(data, influence_on(data))


@pytest.mark.parametrize("averaged", [False, True])
def test_scores_that_are_what_rows_add_foretell_everything(evidence: Evidence, averaged: bool) -> None:
    graddot = next(each for each in evidence.rankings if (each.name, each.kind) == ("graddot", "raw"))
    row = foretold(evidence, graddot, averaged=averaged)
    for estimate in (row.lds, row.other_seed, row.contrast, row.without_topic):
        assert estimate.value == pytest.approx(1.0, abs=1e-6)
    backwards = Ranking("", "", -graddot.values)
    assert foretold(evidence, backwards, averaged=averaged).lds.value == pytest.approx(-1.0, abs=1e-6)
    assert ceiling(evidence, averaged=averaged).lds.value == pytest.approx(1.0, abs=1e-6)


def test_the_damping_is_chosen_by_what_foretells_best(evidence: Evidence) -> None:
    for averaged in (False, True):
        chosen = chosen_damping(evidence, "raw", averaged=averaged)
        assert chosen.scale == LAMBDAS[2]
        assert chosen.lds.value == chosen.graddot.value == pytest.approx(1.0, abs=1e-6)
        assert chosen.default.value < 0.9


def test_a_damping_is_chosen_on_queries_and_retrainings_that_are_not_reported(data: BenchData) -> None:
    evidence = linear_evidence(data, influence_on(data))
    before = chosen_damping(evidence, "raw", averaged=False)
    # Where it is reported, turn everything round: what is chosen stays, what is reported turns.
    for k in range(1, K, 2):
        record = evidence.bank.records[f"subset/{k:03}/1"]
        evidence.bank.records[record.name] = dataclasses.replace(record, losses=-record.losses)
    after = chosen_damping(evidence, "raw", averaged=False)
    assert after.scale == before.scale
    assert after.lds.value == pytest.approx(-before.lds.value)


def test_noise_between_seeds_lowers_the_ceiling(data: BenchData) -> None:
    noisy = linear_evidence(data, influence_on(data), noise=0.1)
    assert 0.2 < ceiling(noisy, averaged=False).lds.value < 0.8


def test_the_lds_is_the_mean_of_scipys_correlations(data: BenchData) -> None:
    noisy = linear_evidence(data, influence_on(data), noise=0.5)
    values = influence_on(data)
    by_hand = []
    for question in range(len(data.questions)):
        real, foreseen = [], []
        for k in range(K):
            record = noisy.bank.records[f"subset/{k:03}/1"]
            real.append(record.losses[question])
            # Positive scores reinforce: with them kept the loss is low.
            foreseen.append(-values[question][record.kept].sum())
        by_hand.append(spearmanr(foreseen, real)[0])
    lds = halves_lds(noisy, values, 1, averaged=False, contrastive=False)
    assert lds.value == pytest.approx(np.mean(by_hand))


def test_the_prediction_is_the_sum_of_score_over_n_of_the_dropped_rows() -> None:
    scores = np.array([[1.0, -2.0, 4.0, 0.5]])
    dropped = np.array([[True, True, False, False], [False, False, False, True]])
    np.testing.assert_allclose(predicted(scores, dropped), [[-0.25, 0.125]])


def test_wrong_rows_at_the_low_end_are_found(evidence: Evidence) -> None:
    graddot = next(each for each in evidence.rankings if (each.name, each.kind) == ("graddot", "raw"))
    for averaged in (False, True):
        row = found(evidence, graddot, averaged=averaged, contrastive=True)
        assert row.planted.value == row.planted_recall.value == row.flipped.value == 1.0
        blind = found(evidence, graddot, averaged=averaged, contrastive=False)
        assert 0.1 < blind.planted.value < 0.9
    chance = next(each for each in evidence.rankings if each.name == "random")
    assert 0.1 < found(evidence, chance, averaged=True, contrastive=True).planted.value < 0.9


def test_a_tail_patch_is_the_change_that_the_removed_rows_make(evidence: Evidence, data: BenchData) -> None:
    rows = {(row.name, row.kind, row.averaged): row for row in patched(evidence)}
    best = rows["graddot", "raw", False]
    values, n = influence_on(data), len(data.rows)
    first = [data.query_topics.index(topic) for topic in sorted(set(data.topics))[2::4]]
    # One row is 1% of these.
    assert best.raised.value == pytest.approx(np.mean([values[i].max() / n for i in first]), abs=1e-5)
    assert best.lowered is None
    harmful = rows["graddot", "raw", True].lowered
    assert harmful is not None
    assert harmful.value < -20 / n
    assert abs(rows["random", "", False].raised.value) < best.raised.value
    # A query of which a retraining is not there yet counts for no ranking.
    partial = linear_evidence(data, influence_on(data))
    last = [tail for tail in tails(partial.scores, data) if not tail.query.averaged][-1]
    del partial.bank.records[without_rows(n, last.rows, SEEDS[0]).name]
    fewer = {(row.name, row.kind, row.averaged): row for row in patched(partial)}
    singles = [values[i].max() / n for i in first][:-1]
    assert fewer["graddot", "raw", False].raised.value == pytest.approx(np.mean(singles), abs=1e-5)
    # TracIn removes the very rows that grad-dot removes.
    assert dataclasses.replace(rows["tracin", "raw", False], name="graddot") == best
