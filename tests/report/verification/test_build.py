from __future__ import annotations

import pytest

from gradian.errors import EvaluationError
from gradian.report.verification.model import Verification

from . import samples


@pytest.mark.parametrize(
    ("right", "outcome"),
    [
        (16, "recovered"),
        (12, "partly_recovered"),
        (9, "not_recovered"),
        (8, "not_recovered"),
        (2, "not_recovered"),
    ],
)
def test_only_a_gain_beyond_noise_is_a_recovery_and_only_a_whole_one_is_called_so(
    right: int, outcome: str
) -> None:
    assert samples.verification(right).outcome == outcome


def test_the_gain_is_paired_over_the_items() -> None:
    gain = samples.verification(16).gain
    # Eight of sixteen items differ, each by one: the interval of their mean excludes zero and one.
    assert gain.delta == 0.5
    assert gain.ci_low is not None
    assert gain.ci_high is not None
    assert 0.2 < gain.ci_low < 0.4 < 0.6 < gain.ci_high < 0.8
    same = samples.verification(8).gain
    assert (same.delta, same.ci_low, same.ci_high) == (0.0, 0.0, 0.0)


def test_both_rounds_stand_beside_each_other_with_what_was_dropped() -> None:
    verification = samples.verification(16)
    assert (verification.before.tuned, verification.before.delta) == (0.5, -0.5)
    assert (verification.after.tuned, verification.after.delta) == (1.0, 0.0)
    assert (verification.before.rows, verification.after.rows) == (9, 6)
    assert (verification.dropped.cluster, verification.dropped.n, verification.dropped.of) == ("0", 3, 9)
    assert [item.came_back for item in verification.items] == [False] * 8 + [True] * 8
    assert verification.control is None


def test_the_finding_leads_and_names_figures_and_rows() -> None:
    first, second, *_ = samples.verification(16).summary
    assert first.startswith("`capitals` came back without the 3 rows of cluster `0`: 0.500 to 1.000 (+0.500")
    assert "-0.500 before, +0.000 after; 8 of the 8 lost items came back" in second
    assert samples.verification(8).summary[0].startswith("`capitals` did not come back")
    assert samples.verification(12).summary[0].startswith("`capitals` came back in part")


def line(verification: Verification, start: str) -> str:
    (found,) = [line for line in verification.summary if line.startswith(start)]
    return found


def test_a_control_that_stays_down_says_that_it_was_these_rows() -> None:
    verification = samples.verification(16, 8)
    assert verification.control is not None
    assert verification.control.gain.delta == 0.0
    assert verification.control.lead.delta == 0.5
    assert "it was these rows" in line(verification, "Control:")


def test_a_control_that_comes_back_as_well_takes_the_claim_away() -> None:
    verification = samples.verification(16, 16)
    assert "made no difference beyond noise that other rows did not make" in line(verification, "Control:")
    assert "measure on more items" in line(verification, "Next:")


def test_without_a_control_the_next_step_offers_one() -> None:
    assert "--control" in line(samples.verification(16), "Next:")
    assert "--control" not in line(samples.verification(16, 8), "Next:")


def test_a_score_that_is_not_finite_has_no_gain() -> None:
    report = samples.round_1()
    items = (report.items[0].model_copy(update={"tuned_score": None}), *report.items[1:])
    with pytest.raises(EvaluationError, match="not a finite number"):
        samples.verification(report=report.model_copy(update={"items": items}))
