from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gradian.report.build import magnitude_facts, most_harmful, top_decile_share
from gradian.report.model import Engines
from gradian.types import Example, Finding, Severity

from . import samples
from .samples import cluster, poisoned, row


class TestBuildReport:
    def test_findings_of_the_data_and_of_the_verdict_come_together_most_severe_first(self) -> None:
        report = samples.poisoned()
        assert {finding.id for finding in report.findings} >= {"data.duplicates", "attribution.thin_margin"}
        ranks = [finding.severity.rank for finding in report.findings]
        assert ranks == sorted(ranks)

    def test_each_item_names_the_rows_that_hurt_it_and_an_item_without_a_query_none(self) -> None:
        first, second, third, _ = samples.poisoned().items
        assert [harmful.score for harmful in first.most_harmful] == [-101.0, -98.0, -96.5]
        assert [harmful.id.split("-")[1] for harmful in second.most_harmful] == ["4", "7", "1"]
        assert third.most_harmful == ()

    def test_relative_ranking_orders_the_shown_rows(self) -> None:
        relative = np.array([-9.0, 0, 0, -5.0, 0, 0, 0, 0, -7.0])
        engines = Engines(primary="datainf", ranked_by="relative")
        report = samples.poisoned(relative=relative, engines=engines)
        assert [excerpt.id.split("-")[1] for excerpt in report.top_examples] == ["0", "8", "3"]
        assert report.examples[0].score == 0.5

    def test_the_verdict_follows_the_score_that_ranks(self) -> None:
        relative = np.array([0.1, -1, -9.0, 0.1, -1, -8.0, 0.1, -1, -7.0])
        engines = Engines(primary="datainf", ranked_by="relative", relative_spearman=0.9)
        report = samples.poisoned(
            relative=relative,
            engines=engines,
            assignment=["0" if k in (1, 4, 7) else "100" for k in range(9)],
        )
        assert report.summary[1].startswith(
            "Cluster `100` holds 88.9% of the negative relative influence in 6 of 9"
        )
        disagreement = next(f for f in report.findings if f.id == "attribution.relative_disagrees")
        assert disagreement.figures["other_cluster"] == "0"

    def test_without_an_eval_set_there_is_no_capability_no_item_and_no_diagnosis(self) -> None:
        report = samples.without_eval_set()
        assert (report.capability, report.items, report.diagnosed) == (None, (), False)
        assert report.findings[0].id == "attribution.no_capability_target"
        assert len(report.examples) == 9


class TestMostHarmful:
    def test_only_negative_scores_count_and_ties_keep_the_order_of_the_data(self) -> None:
        assert most_harmful(np.array([0.0, -1.0, 2.0, -3.0, -1.0, np.nan]), 4) == [3, 1, 4]


class TestTopDecileShare:
    def test_even_harm_gives_a_tenth_and_one_guilty_row_everything(self) -> None:
        assert top_decile_share(np.full(100, -2.0)) == pytest.approx(0.1)
        assert top_decile_share(np.array([-5.0] + [1.0] * 99)) == pytest.approx(1.0)

    def test_without_harm_it_is_undefined(self) -> None:
        assert top_decile_share(np.array([0.0, 1.0])) is None
        assert top_decile_share(np.array([])) is None


def test_harmful_rows_that_a_check_names_too_are_joined_with_it_in_finding_and_summary() -> None:
    examples = [row(k, f"Prompt {k}", f"Answer {k}", "0" if k in (1, 4, 7) else "100") for k in range(60)]
    scores = np.where([example.cluster == "0" for example in examples], -100.0, 0.5)
    scores[[1, 4, 7]] -= np.arange(3)
    defect = Finding(
        id="data.duplicates",
        severity=Severity.LOW,
        title="3 rows are duplicates",
        fix="Drop two of them.",
        example_ids=tuple(examples[k].id for k in (1, 4, 7)),
    )
    values: dict[str, Any] = {
        "examples": examples,
        "assignment": [example.cluster for example in examples],
        "clusters": (
            cluster("0", [1, 4, 7], scores, scores),
            cluster("100", [k for k in range(60) if k not in (1, 4, 7)], scores, scores),
        ),
        "scores": scores,
        "relative": scores,
        "item_scores": None,
        "findings": (defect,),
    }
    report = poisoned(**values)
    (match,) = (f for f in report.findings if f.id == "attribution.cluster_matches_data_defect")
    assert match.title == "3 of the 3 most harmful rows also have the defect `data.duplicates`"
    assert match.figures["p_value"] == pytest.approx(6 / (60 * 59 * 58))
    assert f"{match.title}." in report.summary
    undiagnosed = poisoned(**values, capability=None)
    assert "attribution.cluster_matches_data_defect" not in {f.id for f in undiagnosed.findings}


def rows_of(n: int) -> list[Example]:
    return [row(position, "prompt", "target", "0") for position in range(n)]


class TestMagnitudeFacts:
    def test_rows_with_extreme_gradients_are_counted_with_their_influence(self) -> None:
        examples = rows_of(9)
        norms = np.array([1.0, 1.0, 50.0, 1.0, 0.0, 1.0, 11.0, 1.0, 1.0])
        scores = np.array([1.0, -1.0, -6.0, 0.0, 0.0, -2.0, 2.0, 0.0, 0.0])
        facts = magnitude_facts(examples, scores, norms)
        assert facts is not None
        assert facts.ids == (examples[2].id, examples[6].id)
        assert (facts.rows, facts.largest) == (9, 50.0)
        assert facts.share == pytest.approx(8 / 12)
        # By score / norm, rows 5, 0 and 1 come first.
        assert facts.disagreeing == 2

    @pytest.mark.parametrize("norms", [[1.0, 2.0, 9.0], [0.0, 0.0, 0.0], [5.0, 5.0, 5.0]])
    def test_gradients_of_a_kind_are_nothing_to_tell(self, norms: list[float]) -> None:
        assert magnitude_facts(rows_of(3), np.ones(3), np.array(norms)) is None

    def test_no_influence_is_nothing_to_tell(self) -> None:
        assert magnitude_facts(rows_of(3), np.zeros(3), np.array([1.0, 1.0, 99.0])) is None
