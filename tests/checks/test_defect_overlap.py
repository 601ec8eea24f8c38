"""Harmful rows that a check names too."""

from __future__ import annotations

from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradian.checks.defect_overlap import ID, overlap_findings, overlaps
from gradian.types import Finding, Severity


def defect(*ids: str, name: str = "data.duplicates") -> Finding:
    return Finding(
        name, Severity.LOW, f"{len(ids)} duplicates", fix="Drop all but one of each.", example_ids=ids
    )


def tail(shared: int, rows: int, flagged: int, drawn: int) -> float:
    """P(at least `shared` in common), counted."""
    ways = sum(comb(flagged, k) * comb(rows - flagged, drawn - k) for k in range(shared, drawn + 1))
    return ways / comb(rows, drawn)


def test_the_recorded_run_two_of_five_harmful_rows_among_three_duplicates_of_851() -> None:
    top = ["590", "444", "454", "565", "19"]
    compared = overlaps([defect("444", "454", "12")], {"most harmful rows": top}, 851)
    (found,) = overlap_findings(compared)
    assert found.id == ID
    assert found.title == "2 of the 5 most harmful rows also have the defect `data.duplicates`"
    assert found.example_ids == ("444", "454")
    assert "3 of the 851 training rows (0.4%)" in found.evidence
    assert found.figures["p_value"] == pytest.approx(tail(2, 851, 3, 5))
    assert found.fix.endswith("Drop all but one of each.")


@given(rows=st.integers(1, 40), flagged=st.integers(1, 40), drawn=st.integers(1, 40), seed=st.randoms())
def test_the_chance_is_the_one_that_counting_gives(rows: int, flagged: int, drawn: int, seed: object) -> None:
    flagged, drawn = min(flagged, rows), min(drawn, rows)
    ids = [str(k) for k in range(rows)]
    harmful = seed.sample(ids, drawn)  # type: ignore[attr-defined]
    (one,) = overlaps([defect(*ids[:flagged])], {"rows": harmful}, rows)
    assert one.p_value == pytest.approx(tail(len(one.shared), rows, flagged, drawn), rel=1e-9)


def test_a_defect_of_every_row_explains_nothing() -> None:
    ids = [str(k) for k in range(50)]
    assert overlap_findings(overlaps([defect(*ids)], {"rows": ids[:5]}, 50)) == ()


def test_one_row_in_common_names_nothing_however_rare_the_defect() -> None:
    ids = [str(k) for k in range(100_000)]
    assert overlap_findings(overlaps([defect("3")], {"rows": ids[:5]}, len(ids))) == ()


def test_many_comparisons_raise_the_bar() -> None:
    ids = [str(k) for k in range(200)]
    two = defect("0", "1", "30", "31")
    alone = overlaps([two], {"rows": ids[:5]}, 200)
    assert len(overlap_findings(alone)) == 1
    others = [defect(str(k), name=f"data.other{k}") for k in range(40, 80)]
    assert overlap_findings(overlaps([two, *others], {"rows": ids[:5]}, 200)) == ()


def test_only_checks_of_training_rows_are_compared_and_each_is_named_once() -> None:
    ids = [str(k) for k in range(200)]
    rows = ("0", "1", "2")
    compared = overlaps(
        [defect(*rows), defect(*rows, name="eval.data.duplicates"), defect(name="data.tiny_dataset")],
        {"most harmful rows": ids[:5], "rows of cluster `a`": ids[:4]},
        200,
    )
    assert len(compared) == 2
    (found,) = overlap_findings(compared)
    assert found.title == "3 of the 4 rows of cluster `a` also have the defect `data.duplicates`"
