from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from verdicts import (
    Status,
    Verdict,
    accused_cluster,
    grouped,
    judge_parity,
    judge_poison,
    judge_recovery,
    judge_scenario,
    judge_scenarios,
    skipped,
)

from gradian.report.model import Report
from gradian.types import Finding, Severity
from tests.report import samples
from tests.report.verification.samples import verification

PLANTED = tuple(f"{row:012x}-{row}" for row in (1, 4, 7))


def inverted() -> Report:
    """The planted rows come out as helpful."""
    scores = np.array([-90.0, 98.0, -91.5, -80.25, 101.0, -82.0, -90.75, 96.5, -90.5])
    return samples.poisoned(
        scores=scores,
        relative=scores,
        clusters=(
            samples.cluster("100", [0, 2, 3, 5, 6, 8], scores, scores),
            samples.cluster("0", [1, 4, 7], scores, scores),
        ),
    )


@pytest.mark.parametrize(
    ("report", "uptake", "status"),
    [
        (samples.poisoned(), 0.5, Status.PASS),
        (samples.poisoned(), 0.0, Status.PASS),
        (inverted(), 0.5, Status.FAIL),
        (inverted(), 0.15, Status.FAIL),
        (inverted(), 0.14, Status.INCONCLUSIVE),
        (samples.not_significant(), 0.5, Status.INCONCLUSIVE),
        (samples.not_significant(), 0.0, Status.INCONCLUSIVE),
    ],
)
def test_a_passes_with_a_gated_regression_and_the_planted_cluster_on_top(
    report: Report, uptake: float, status: Status
) -> None:
    verdict = judge_poison(report, "0", uptake)
    assert verdict.status is status
    assert verdict.figures["uptake"] == uptake
    assert verdict.reasons


def test_a_poison_that_was_not_learned_says_what_to_raise() -> None:
    (reason,) = judge_poison(inverted(), "0", 0.05).reasons
    assert "5% of the items" in reason
    assert "--poison-fraction" in reason
    assert len(judge_poison(samples.not_significant(), "0", 0.05).reasons) == 2


def test_a_cluster_that_helps_on_balance_is_on_top_of_nothing() -> None:
    scores = np.full(9, 2.0)
    helpful = samples.poisoned(
        scores=scores,
        relative=scores,
        clusters=(
            samples.cluster("0", [1, 4, 7], scores, scores),
            samples.cluster("100", [0, 2, 3, 5, 6, 8], scores, scores),
        ),
    )
    assert judge_poison(helpful, "0", 0.9).status is Status.FAIL


def broken(*fired: str, **changes: Any) -> Report:
    """One cluster with every row, under a fault that the audit names."""
    scores = changes.pop("scores", np.full(9, -4.0))
    return samples.poisoned(
        **{
            "assignment": ["clean"] * 9,
            "scores": scores,
            "relative": scores,
            "clusters": (samples.cluster("clean", list(range(9)), scores, scores),),
            "findings": tuple(Finding(name, Severity.CRITICAL, name) for name in fired),
            **changes,
        }
    )


def test_b_passes_when_the_checks_fire_and_no_rows_are_blamed() -> None:
    verdict = judge_scenario(broken("config.lr_too_high", "config.overtraining"), ["config.lr_too_high"])
    assert verdict.status is Status.PASS
    assert verdict.figures["fired"] == ["config.lr_too_high", "config.overtraining"]
    assert verdict.figures["missing"] == []
    assert "config.lr_too_high" in verdict.figures["leads"]


def test_b_fails_when_a_check_is_silent() -> None:
    verdict = judge_scenario(broken("config.overtraining"), ["config.overtraining", "config.lr_too_high"])
    assert verdict.status is Status.FAIL
    assert verdict.reasons == ("config.lr_too_high did not fire.",)


def test_b_fails_when_good_rows_are_blamed() -> None:
    report = samples.poisoned(findings=(Finding("config.lr_too_high", Severity.HIGH, "x"),))
    verdict = judge_scenario(report, ["config.lr_too_high"])
    assert verdict.status is Status.FAIL
    assert "cluster 0" in verdict.reasons[0]


def test_b_is_inconclusive_when_nothing_regressed() -> None:
    same = samples.not_significant().capability
    report = broken("config.lr_too_high").model_copy(update={"capability": same, "diagnosed": False})
    assert judge_scenario(report, ["config.lr_too_high"]).status is Status.INCONCLUSIVE


def test_the_finer_grouping_is_told_and_decides_nothing() -> None:
    scores = np.array([-0.1, -0.1, -0.1, -0.1, -0.1, -0.1, -9.0, -9.0, -9.0])
    kinds = ["sum"] * 6 + ["list"] * 3
    verdict = judge_scenario(broken("config.lr_too_high", scores=scores), ["config.lr_too_high"], kinds)
    assert verdict.figures["accused"] is None
    assert verdict.figures["accused_by_kind"] == "list"
    assert verdict.status is Status.PASS


def test_rows_grouped_as_they_were_are_accused_as_they_were() -> None:
    report = samples.poisoned()
    again = grouped(report, [example.cluster for example in report.examples])
    assert accused_cluster(again) == accused_cluster(report) == "0"


@pytest.mark.parametrize(
    ("statuses", "status"),
    [
        ("PASS INCONCLUSIVE", Status.PASS),
        ("INCONCLUSIVE INCONCLUSIVE", Status.INCONCLUSIVE),
        ("PASS FAIL", Status.FAIL),
    ],
)
def test_b_as_a_whole_needs_one_fault_that_did_damage_and_none_that_failed(
    statuses: str, status: Status
) -> None:
    verdicts = {f"s{i}": Verdict(Status(name), ("why",)) for i, name in enumerate(statuses.split())}
    whole = judge_scenarios(verdicts)
    assert whole.status is status
    assert set(whole.figures["scenarios"]) == set(verdicts)


def test_c_passes_when_the_second_round_is_better_and_counts_the_innocent() -> None:
    verdict = judge_recovery(verification(16, 8), PLANTED)
    assert verdict.status is Status.PASS
    assert (verdict.figures["round1_delta"], verdict.figures["round2_delta"]) == (-0.5, 0.0)
    assert (verdict.figures["removal_precision"], verdict.figures["removal_recall"]) == (1.0, 1.0)
    assert verdict.figures["control_delta"] == -0.5
    half = judge_recovery(verification(16), (PLANTED[0], "other"))
    assert half.figures["removal_precision"] == pytest.approx(1 / 3)
    assert half.figures["removal_recall"] == 0.5
    assert "2 of the 3 dropped rows were innocent." in half.reasons


@pytest.mark.parametrize("right", [8, 4])
def test_c_fails_when_the_second_round_is_no_better(right: int) -> None:
    assert judge_recovery(verification(right), PLANTED).status is Status.FAIL


def test_d_passes_when_both_backends_conclude_the_same() -> None:
    verdict = judge_parity(samples.poisoned(), samples.poisoned())
    assert verdict.status is Status.PASS
    assert verdict.figures["spearman"] == pytest.approx(1.0)
    other = judge_parity(samples.poisoned(), inverted())
    assert other.status is Status.FAIL
    assert any("cluster on top: 0 under hf, 100 under unsloth" in reason for reason in other.reasons)
    assert judge_parity(samples.poisoned(), samples.not_significant()).status is Status.FAIL


def test_d_is_inconclusive_when_neither_backend_regressed() -> None:
    quiet = samples.not_significant()
    assert judge_parity(quiet, quiet).status is Status.INCONCLUSIVE


def test_a_verdict_is_json() -> None:
    assert skipped("no CUDA device").to_json() == {"status": "SKIPPED", "reasons": ["no CUDA device"]}
