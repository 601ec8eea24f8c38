"""The findings on the verdict, on the figures of the runs recorded in the documentation."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradian.checks.attribution import (
    CapabilityFacts,
    ClusterFacts,
    MagnitudeFacts,
    VerdictFacts,
    culprit,
    dataset_finding,
    harm_contrast,
    is_diagnosed,
    is_flat,
    truncation_finding,
    verdict_findings,
)
from gradian.runs.gradian_run import RunDataset
from gradian.types import Finding, Severity


def cluster(name: str, n: int, total: float, share: float, other: float | None = None) -> ClusterFacts:
    return ClusterFacts(name, name, n, total, share, total / n, other)


def loglik(base: float, tuned: float, low: float, high: float, items: int, verdict: str) -> CapabilityFacts:
    lost = items if verdict == "regressed" else 0
    return CapabilityFacts(
        name="capability",
        metric="loglik",
        base=base,
        tuned=tuned,
        delta=tuned - base,
        ci_low=low,
        ci_high=high,
        n_items=items,
        verdict=verdict,
        proxy_used=True,
        regressed_margins=(None,) * lost,
    )


# A: 51 planted rows among 800 clean ones. Two of the eight margins are thin and their mean is 2.53.
HELD = CapabilityFacts(
    name="poison_wrong_facts",
    metric="contains",
    base=0.9375,
    tuned=0.4375,
    delta=-0.5,
    ci_low=-0.75,
    ci_high=-0.25,
    n_items=16,
    n_flipped=8,
    verdict="regressed",
    regressed_margins=(0.3, 0.9, 2.0, 3.0, 3.04, 3.5, 3.5, 4.0),
    already_failing=("eval-7",),
)
POISONED = VerdictFacts(
    capability=HELD,
    clusters=(cluster("0", 51, -5024.0, 0.751), cluster("100", 800, -405.1, 0.249)),
    cross_check="graddot",
    spearman=0.791,
)
# The same run after the planted rows were dropped.
RETRAINED = VerdictFacts(
    capability=replace(
        HELD,
        tuned=0.9375,
        delta=0.0,
        ci_low=0.0,
        ci_high=0.0,
        verdict="not_significant",
        regressed_margins=(),
    ),
    clusters=(cluster("100", 800, 1.32e4, 1.0),),
)
EPOCHS = VerdictFacts(
    capability=loglik(-5.0489, -11.1261, -7.0826, -5.1075, 16, "regressed"),
    clusters=(cluster("100", 800, -1.671e4, 1.0),),
    query_signal="target",
    cross_check="graddot",
    spearman=0.797,
)
TINY_BATCH = VerdictFacts(
    capability=loglik(-5.0489, -7.4831, -3.0370, -1.7874, 16, "regressed"),
    clusters=(cluster("100", 800, -1.3e4, 1.0),),
    query_signal="target",
)
LEARNING_RATE = VerdictFacts(
    capability=loglik(-5.0489, -6.8896, -2.5096, -1.1120, 16, "regressed"),
    clusters=(cluster("100", 800, -3192.0, 1.0),),
    query_signal="target",
)
TRUNCATED = VerdictFacts(
    capability=loglik(-5.0489, -3.3436, 1.2417, 2.1581, 16, "improved"),
    clusters=(cluster("100", 800, -849.6, 1.0),),
    query_signal="target",
)
ATTENTION_ONLY = VerdictFacts(
    capability=loglik(-5.0489, -1.7381, 2.7958, 3.8373, 16, "improved"),
    clusters=(cluster("100", 800, 6.254e4, 1.0),),
    query_signal="target",
)
REFUSAL = VerdictFacts(
    capability=loglik(-2.0847, -1.2206, 0.7659, 0.9729, 64, "improved"),
    clusters=(cluster("0", 51, -135.4, 0.39), cluster("100", 800, 299.8, 0.61)),
    query_signal="target",
)
ALL = [POISONED, RETRAINED, EPOCHS, TINY_BATCH, LEARNING_RATE, TRUNCATED, ATTENTION_ONLY, REFUSAL]


def found(facts: VerdictFacts) -> dict[str, Finding]:
    return {finding.id.removeprefix("attribution."): finding for finding in verdict_findings(facts)}


def healthy(**changes: Any) -> VerdictFacts:
    capability = replace(
        HELD,
        regressed_margins=(3.0, 4.0),
        already_failing=(),
    )
    return replace(POISONED, capability=capability, spearman=0.97, **changes)


class TestRecordedRuns:
    @pytest.mark.parametrize(
        ("facts", "expected"),
        [
            (
                POISONED,
                {
                    "thin_margin": Severity.MEDIUM,
                    "low_engine_agreement": Severity.MEDIUM,
                    "already_failing": Severity.LOW,
                },
            ),
            (
                RETRAINED,
                {
                    "gate_failed": Severity.HIGH,
                    "no_item_regressed": Severity.MEDIUM,
                    "already_failing": Severity.LOW,
                },
            ),
            (
                EPOCHS,
                {
                    "flat_influence": Severity.HIGH,
                    "target_query": Severity.HIGH,
                    "base_model_weak": Severity.HIGH,
                    "proxy_metric": Severity.MEDIUM,
                    "low_engine_agreement": Severity.MEDIUM,
                },
            ),
            (
                TRUNCATED,
                {
                    "gate_failed": Severity.HIGH,
                    "target_query": Severity.HIGH,
                    "base_model_weak": Severity.HIGH,
                    "proxy_metric": Severity.MEDIUM,
                    "no_item_regressed": Severity.MEDIUM,
                },
            ),
        ],
        ids=["poisoned", "retrained", "epochs", "truncated"],
    )
    def test_exactly_the_recorded_hedges_are_raised(
        self, facts: VerdictFacts, expected: dict[str, Severity]
    ) -> None:
        assert {name: finding.severity for name, finding in found(facts).items()} == expected

    @pytest.mark.parametrize("facts", [EPOCHS, TINY_BATCH, LEARNING_RATE])
    def test_one_cluster_with_all_800_rows_is_a_setup_fault(self, facts: VerdictFacts) -> None:
        flat = found(facts)["flat_influence"]
        assert "800 of the 800 rows" in flat.evidence
        assert "not of some rows" in flat.title

    def test_planted_rows_at_200_times_the_harm_are_not_flat(self) -> None:
        assert not is_flat(POISONED.clusters)
        assert culprit(POISONED.clusters) == POISONED.clusters[0]
        assert harm_contrast(POISONED.clusters[0], POISONED.clusters) == pytest.approx(47.3, abs=0.1)

    def test_the_net_harmful_cluster_is_the_culprit_though_another_holds_more_of_the_negative_share(
        self,
    ) -> None:
        assert culprit(REFUSAL.clusters) == REFUSAL.clusters[0]
        assert harm_contrast(REFUSAL.clusters[0], REFUSAL.clusters) == pytest.approx(10.0, abs=0.1)

    @pytest.mark.parametrize("facts", [RETRAINED, ATTENTION_ONLY])
    def test_data_that_helped_is_neither_flat_nor_guilty(self, facts: VerdictFacts) -> None:
        assert not is_flat(facts.clusters)
        assert culprit(facts.clusters) is None

    def test_only_regressions_beyond_noise_are_diagnosed(self) -> None:
        assert [is_diagnosed(facts) for facts in ALL] == [True, False, True, True, True, False, False, False]

    @pytest.mark.parametrize("facts", [EPOCHS, REFUSAL])
    def test_both_recorded_weak_base_scores_are_high(self, facts: VerdictFacts) -> None:
        weak = found(facts)["base_model_weak"]
        assert weak.severity is Severity.HIGH
        assert facts.capability is not None
        assert f"{facts.capability.base:.2f}" in weak.title

    def test_the_thin_margin_carries_the_recorded_figures(self) -> None:
        thin = found(POISONED)["thin_margin"]
        assert "2 of the 8 regressed items (mean margin +2.53 nats)" in thin.title
        assert thin.figures == {"n_thin": 2, "n_regressed": 8, "mean_margin": pytest.approx(2.53)}

    def test_already_failing_items_are_named_as_eval_items_not_as_training_rows(self) -> None:
        failing = found(POISONED)["already_failing"]
        assert failing.title.startswith("1 of the 16 eval items was already failing")
        assert failing.example_ids == ()
        assert failing.figures["items"] == ["eval-7"]


class TestNoCapability:
    def test_without_an_eval_set_the_run_is_a_smoke_test_and_raises_nothing_about_a_capability(self) -> None:
        facts = VerdictFacts(capability=None, clusters=EPOCHS.clusters)
        assert list(found(facts)) == ["no_capability_target"]
        assert found(facts)["no_capability_target"].severity is Severity.HIGH
        assert not is_diagnosed(facts)


class TestGate:
    def test_a_healthy_diagnosis_raises_nothing(self) -> None:
        assert verdict_findings(healthy()) == ()

    def test_the_gate_switched_off_still_says_that_the_change_is_noise(self) -> None:
        noise = replace(
            HELD,
            delta=-0.1,
            ci_low=-0.3,
            ci_high=0.1,
            verdict="not_significant",
        )
        facts = replace(POISONED, capability=noise, require_significant=False)
        assert is_diagnosed(facts)
        assert "gate is off" in found(facts)["gate_failed"].evidence
        assert not is_diagnosed(replace(facts, require_significant=True))

    def test_the_gate_switched_off_never_diagnoses_a_rise(self) -> None:
        assert not is_diagnosed(replace(TRUNCATED, require_significant=False))
        assert not is_diagnosed(replace(RETRAINED, require_significant=False))


class TestEngineAgreement:
    @pytest.mark.parametrize(
        ("spearman", "severity"),
        [
            (-0.2, Severity.HIGH),
            (0.499, Severity.HIGH),
            (0.5, Severity.MEDIUM),
            (0.899, Severity.MEDIUM),
            (0.9, None),
            (math.nan, Severity.MEDIUM),
            (None, Severity.MEDIUM),
        ],
    )
    def test_severity_follows_the_agreement(self, spearman: float | None, severity: Severity | None) -> None:
        finding = found(replace(healthy(), spearman=spearman)).get("low_engine_agreement")
        assert (finding.severity if finding else None) == severity

    def test_without_a_second_engine_nothing_is_said(self) -> None:
        assert verdict_findings(replace(healthy(), cross_check=None, spearman=None)) == ()


class TestRelative:
    def test_a_low_rank_agreement_is_raised(self) -> None:
        assert "Spearman 0.310" in found(healthy(relative_spearman=0.31))["relative_disagrees"].title

    def test_another_top_cluster_is_raised_with_both_names(self) -> None:
        clusters = (
            cluster("big gradients", 50, -900.0, 0.8, -0.01),
            cluster("many", 400, -50.0, 0.1, -0.02),
            cluster("rest", 400, -50.0, 0.1, 0.01),
        )
        finding = found(healthy(clusters=clusters, relative_spearman=0.9))["relative_disagrees"]
        assert (finding.figures["cluster"], finding.figures["other_cluster"]) == (
            "big gradients",
            "many",
        )

    def test_agreement_of_both_is_silent(self) -> None:
        clusters = (cluster("a", 50, -900.0, 0.9, -0.9), cluster("b", 400, -50.0, 0.1, -0.01))
        assert verdict_findings(healthy(clusters=clusters, relative_spearman=0.95)) == ()


class TestFlatInfluence:
    def test_equal_rates_across_clusters_are_flat(self) -> None:
        clusters = tuple(cluster(str(k), n, -2.0 * n, n / 600) for k, n in enumerate((100, 200, 300)))
        assert is_flat(clusters)
        assert "largest ratio is 1" in found(healthy(clusters=clusters))["flat_influence"].evidence

    def test_nearly_the_whole_data_set_is_no_culprit(self) -> None:
        clusters = (cluster("all", 950, -950.0, 0.999), cluster("few", 50, 1.0, 0.001))
        assert harm_contrast(clusters[0], clusters) > 2
        assert is_flat(clusters)

    def test_a_tiny_cluster_with_a_tenth_of_the_harm_is_lumpy(self) -> None:
        clusters = (cluster("few", 12, -100.0, 0.1), cluster("rest", 4988, -900.0, 0.9))
        assert culprit(clusters) == clusters[0]

    def test_a_cluster_that_helps_on_balance_is_no_culprit_whatever_its_share(self) -> None:
        clusters = (cluster("rest", 800, -10.0, 0.1), cluster("mixed", 50, 500.0, 0.9))
        assert harm_contrast(clusters[1], clusters) > 100
        assert culprit(clusters) is None

    def test_no_clustering_says_nothing_about_flatness(self) -> None:
        assert "flat_influence" not in found(replace(EPOCHS, clustered=False))

    def test_one_cluster_over_uneven_rows_says_that_it_may_hide_them(self) -> None:
        flat = found(replace(EPOCHS, top_decile_share=0.82))["flat_influence"]
        assert "82%" in flat.evidence
        assert "clustering.method" in flat.fix

    @given(
        rows=st.lists(st.tuples(st.integers(1, 500), st.floats(0.01, 100.0)), min_size=2, max_size=6),
        scale=st.floats(1e-6, 1e6),
        copies=st.integers(1, 9),
    )
    def test_contrast_does_not_depend_on_the_scale_of_scores_or_on_repeating_all_rows(
        self, rows: list[tuple[int, float]], scale: float, copies: int
    ) -> None:
        def clusters(factor: float, times: int) -> tuple[ClusterFacts, ...]:
            total = sum(n * rate for n, rate in rows)
            return tuple(
                cluster(str(k), times * n, -factor * times * n * rate, n * rate / total)
                for k, (n, rate) in enumerate(rows)
            )

        plain, scaled = clusters(1.0, 1), clusters(scale, copies)
        for one, other in zip(plain, scaled, strict=True):
            assert harm_contrast(one, plain) == pytest.approx(harm_contrast(other, scaled))
        assert (culprit(plain) is None) == (culprit(scaled) is None)


class TestOtherHedges:
    def test_a_single_thin_item_among_many_is_only_low(self) -> None:
        capability = replace(
            HELD,
            regressed_margins=(0.5, *[3.0] * 9, None, math.nan),
        )
        thin = found(replace(POISONED, capability=capability))["thin_margin"]
        assert thin.severity is Severity.LOW
        assert thin.figures["n_regressed"] == 10

    def test_a_quarter_of_the_items_failing_before_is_medium(self) -> None:
        capability = replace(
            HELD,
            already_failing=("a", "b", "c", "d"),
        )
        assert found(replace(POISONED, capability=capability))["already_failing"].severity is Severity.MEDIUM

    def test_a_target_query_under_a_text_metric_says_that_an_answer_was_at_hand(self) -> None:
        finding = found(healthy(query_signal="target"))["target_query"]
        assert finding.severity is Severity.HIGH
        assert "was not used" in finding.evidence

    def test_a_text_metric_below_one_half_is_a_weak_base(self) -> None:
        capability = replace(HELD, base=0.4375)
        assert "0.44" in found(replace(POISONED, capability=capability))["base_model_weak"].title

    @pytest.mark.parametrize("facts", ALL)
    def test_every_finding_has_evidence_and_a_fix_and_comes_most_severe_first(
        self, facts: VerdictFacts
    ) -> None:
        findings = verdict_findings(facts)
        assert all(finding.title and finding.evidence and finding.fix for finding in findings)
        assert [finding.severity.rank for finding in findings] == sorted(
            finding.severity.rank for finding in findings
        )


def test_scoring_other_rows_than_the_run_was_trained_on_is_critical() -> None:
    trained = RunDataset(path="/data/train.jsonl", hash="a" * 64, n=851, n_trained=851)
    assert dataset_finding(trained, "a" * 64, 851) is None
    found = dataset_finding(trained, "b" * 64, 850)
    assert found is not None
    assert (found.id, found.severity) == ("attribution.dataset_mismatch", Severity.CRITICAL)
    assert "/data/train.jsonl" in found.fix


class TestTruncation:
    LENGTHS: ClassVar[dict[str, int]] = {"a-0": 100, "b-1": 600, "c-2": 2000}

    def test_rows_that_training_cut_elsewhere_are_named(self) -> None:
        found = truncation_finding(512, 1024, self.LENGTHS, dropped=False)
        assert found is not None
        assert found.example_ids == ("b-1", "c-2")
        assert found.title.startswith("2 of 3 rows")
        assert found.fix == "Set grads.max_seq_length to 512."
        other = truncation_finding(1024, 512, self.LENGTHS, dropped=False)
        assert other is not None
        assert other.example_ids == ("b-1", "c-2")

    def test_rows_that_training_left_out_are_named_even_at_the_same_limit(self) -> None:
        found = truncation_finding(1024, 1024, self.LENGTHS, dropped=True)
        assert found is not None
        assert found.example_ids == ("c-2",)
        assert "left longer rows out" in found.evidence

    def test_equal_limits_short_rows_and_an_unknown_limit_say_nothing(self) -> None:
        assert truncation_finding(512, 512, self.LENGTHS, dropped=False) is None
        assert truncation_finding(2048, 4096, self.LENGTHS, dropped=False) is None
        assert truncation_finding(None, 64, self.LENGTHS, dropped=False) is None


class TestDominatedByMagnitude:
    FEW = MagnitudeFacts(ids=("a-3", "b-9"), rows=200, share=0.81, largest=431.0, disagreeing=2)

    def found(self, **changes: Any) -> list[Finding]:
        facts = replace(POISONED, **{"magnitude": self.FEW, **changes})
        return [each for each in verdict_findings(facts) if each.id == "attribution.dominated_by_magnitude"]

    def test_a_few_extreme_rows_with_most_of_the_influence_are_named(self) -> None:
        (finding,) = self.found()
        assert finding.severity is Severity.MEDIUM
        assert finding.title.startswith("2 of 200 rows hold 81% of all influence")
        assert finding.example_ids == ("a-3", "b-9")
        assert "engine.relative: true" in finding.fix
        assert "431 times the median" in finding.evidence

    def test_it_is_silent_where_the_rows_are_many_or_hold_little_or_do_not_rank(self) -> None:
        assert not self.found(magnitude=None)
        assert not self.found(magnitude=replace(self.FEW, share=0.49))
        assert not self.found(magnitude=replace(self.FEW, rows=19))
        assert self.found(magnitude=replace(self.FEW, rows=20))
        assert not self.found(ranked_by="relative")

    def test_one_row_is_a_few_in_a_small_data_set(self) -> None:
        assert self.found(magnitude=replace(self.FEW, ids=("a-3",), rows=5))
