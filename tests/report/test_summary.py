from __future__ import annotations

from dataclasses import replace

from gradian.checks.attribution import VerdictFacts, verdict_findings
from gradian.report.summary import summary_lines
from gradian.types import Finding, Severity

from ..checks.test_attribution import (
    ATTENTION_ONLY,
    EPOCHS,
    HELD,
    POISONED,
    REFUSAL,
    RETRAINED,
    TRUNCATED,
    cluster,
)

CONTAMINATED = Finding(
    "data.train_eval_contamination",
    Severity.CRITICAL,
    "64 eval items (100.0%) also appear in the training set",
    fix="Hold the eval set out of the training data.",
)


def lines(facts: VerdictFacts, *findings: Finding) -> tuple[str, ...]:
    told = sorted([*verdict_findings(facts), *findings], key=lambda finding: finding.severity.rank)
    return summary_lines(facts, told)


class TestRecordedRuns:
    def test_the_poisoned_run_says_what_the_worked_example_says(self) -> None:
        change, verdict, *hedges, last = lines(POISONED)
        assert change == (
            "`poison_wrong_facts` regressed 0.938 to 0.438 (-0.500, 95% CI [-0.750, -0.250]) over 16 items."
            " 8 items flipped from right to wrong."
        )
        assert verdict == (
            "Cluster `0` holds 75.1% of the negative influence in 51 of 851 rows:"
            " -98.51 a row against -0.5064 for the rest, about 195 times as harmful."
        )
        assert any("2 of the 8 regressed items" in hedge for hedge in hedges)
        assert any("1 of the 16 eval items was already failing" in hedge for hedge in hedges)
        assert any("moderate" in hedge and "0.791" in hedge for hedge in hedges)
        assert last.startswith("Next: Drop the 51 rows of cluster `0`, retrain")

    def test_the_epoch_run_accuses_the_setup_and_no_rows(self) -> None:
        text = " ".join(lines(EPOCHS))
        assert "Every cluster is about equally guilty" in text
        assert "Cluster `100`" not in text
        assert "Delete nothing on this ranking" in text

    def test_runs_without_a_regression_are_refused_and_name_no_cluster(self) -> None:
        for facts in (RETRAINED, TRUNCATED, ATTENTION_ONLY, REFUSAL):
            first, *rest = lines(facts)
            assert first.startswith("Not diagnosed: ")
            assert "nothing is accused" in first
            assert not any("negative influence" in line or "Drop the" in line for line in rest)


class TestOrder:
    def test_what_invalidates_the_run_comes_first_and_its_fix_last(self) -> None:
        first, second, *_, last = lines(POISONED, CONTAMINATED)
        assert first == (
            "1 critical issue invalidates or dominates this run: 64 eval items (100.0%) also appear in the"
            " training set. Fix it before interpreting anything else."
        )
        assert "regressed" in second
        assert last == "Next: Hold the eval set out of the training data."

    def test_several_critical_issues_are_counted(self) -> None:
        first = lines(POISONED, CONTAMINATED, replace(CONTAMINATED, title="292 examples train on nothing"))[0]
        assert first.startswith("2 critical issues invalidate or dominate this run: ")
        assert "Fix these before interpreting anything else." in first

    def test_high_findings_of_the_audit_are_named_once(self) -> None:
        high = Finding("config.overtraining", Severity.HIGH, "12 epochs")
        assert sum("`config.overtraining`" in line for line in lines(POISONED, high, high)) == 1

    def test_a_setting_that_explains_flat_influence_comes_before_the_change(self) -> None:
        epochs = Finding(
            "config.overtraining", Severity.HIGH, "12 epochs over 800 rows", fix="Train 2 epochs."
        )
        weaker = Finding("config.no_warmup", Severity.MEDIUM, "No warmup")
        first, second, *_, last = lines(EPOCHS, weaker, epochs)
        assert first.startswith("The set-up explains this better than any row: 12 epochs over 800 rows")
        assert "regressed" in second
        assert last.startswith("Next: Train 2 epochs. Delete nothing")

    def test_a_setting_does_not_lead_when_a_cluster_stands_out(self) -> None:
        epochs = Finding("config.overtraining", Severity.MEDIUM, "3 epochs over 851 rows")
        assert "regressed" in lines(POISONED, epochs)[0]


class TestCluster:
    def test_a_rest_that_helped_is_said_to_be_harmless_instead_of_a_ratio(self) -> None:
        facts = replace(POISONED, clusters=REFUSAL.clusters)
        assert (
            "-2.655 a row against +0.3748 for the rest, which is not harmful on the whole" in lines(facts)[1]
        )

    def test_a_label_that_says_more_stands_beside_the_id_and_cannot_break_the_sentence(self) -> None:
        clusters = (
            replace(cluster("7", 51, -5024.0, 0.751), label="in`voice, \x1b[31m**total**"),
            POISONED.clusters[1],
        )
        assert (
            "Cluster `7` (`in'voice, \\x1b[31m**total**`) holds"
            in lines(replace(POISONED, clusters=clusters))[1]
        )

    def test_data_that_helped_is_not_accused(self) -> None:
        facts = replace(POISONED, clusters=RETRAINED.clusters)
        assert lines(facts)[1].startswith("No cluster is net harmful")
        assert "Read the most harmful rows" in lines(facts)[-1]

    def test_without_clustering_the_reader_is_sent_to_the_rows(self) -> None:
        facts = replace(POISONED, clusters=EPOCHS.clusters, clustered=False)
        assert "not clustered" in lines(facts)[1]

    def test_the_gate_switched_off_is_said_in_the_first_line(self) -> None:
        noise = replace(
            HELD,
            delta=-0.1,
            ci_low=-0.3,
            ci_high=0.1,
            verdict="not_significant",
        )
        first = lines(replace(POISONED, capability=noise, require_significant=False))[0]
        assert "may be a ranking of noise" in first
