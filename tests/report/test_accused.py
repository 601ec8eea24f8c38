from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradian.errors import NothingAccusedError
from gradian.report import jsonfile
from gradian.report.accused import accused_rows
from gradian.report.model import Engines, Report

from . import samples

SCORES = st.lists(st.sampled_from([-100.0, -3.0, -1.0, 0.0, 0.5, 90.0]), min_size=9, max_size=9)


def report_of(scores: np.ndarray, relative: np.ndarray, ranked_by: str) -> Report:
    return samples.poisoned(
        scores=scores,
        relative=relative,
        clusters=(
            samples.cluster("0", [1, 4, 7], scores, relative),
            samples.cluster("100", [0, 2, 3, 5, 6, 8], scores, relative),
        ),
        engines=Engines(primary="datainf", ranked_by=ranked_by),  # type: ignore[arg-type]
    )


def test_the_rows_of_the_cluster_that_the_summary_names_are_accused() -> None:
    accused = accused_rows(samples.poisoned())
    assert (accused.cluster, accused.label) == ("0", "capital, city, berlin")
    assert accused.rows == (1, 4, 7)
    assert accused.ids == tuple(f"{row:012x}-{row}" for row in (1, 4, 7))
    assert accused.n == 9


@given(SCORES, SCORES, st.sampled_from(["raw", "relative"]))
def test_what_is_accused_is_what_the_summary_says_to_drop(
    raw: list[float], relative: list[float], ranked_by: str
) -> None:
    report = report_of(np.array(raw), np.array(relative), ranked_by)
    advice = report.summary[-1]
    try:
        accused = accused_rows(report)
    except NothingAccusedError:
        assert "Drop the" not in advice
    else:
        assert f"Drop the {len(accused.rows)} rows of cluster `{accused.cluster}`" in advice


def test_a_report_read_back_from_its_json_accuses_the_same_rows() -> None:
    report = samples.poisoned()
    again = Report.model_validate(json.loads(jsonfile.render(report)))
    assert accused_rows(again) == accused_rows(report)


def test_scores_that_were_not_finite_accuse_nobody() -> None:
    report = samples.poisoned()
    lost = tuple(
        example.model_copy(update={"score": None}) if example.row in (4, 5) else example
        for example in report.examples
    )
    assert accused_rows(report.model_copy(update={"examples": lost})).rows == (1, 4, 7)


@pytest.mark.parametrize(
    ("report", "reason"),
    [
        (samples.not_significant(), "cannot be told from noise"),
        (samples.without_eval_set(), "No eval set was given"),
        (report_of(np.full(9, -2.0), np.full(9, -2.0), "raw"), "about equally guilty"),
        (report_of(np.full(9, 2.0), np.full(9, 2.0), "raw"), "no cluster that stands out"),
    ],
    ids=["noise", "no eval set", "flat", "all helpful"],
)
def test_a_report_that_names_no_cluster_accuses_nothing_and_says_why(report: Report, reason: str) -> None:
    with pytest.raises(NothingAccusedError, match=reason) as caught:
        accused_rows(report)
    assert caught.value.fix
