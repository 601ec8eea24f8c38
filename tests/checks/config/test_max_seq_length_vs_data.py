from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from gradian.checks.audit import Audit
from tests.checks.building import dataset, encoder, healthy_run
from tests.checks.fixtures import only, verdict

ID = "config.max_seq_length_vs_data"


def texts(limit: int, **run: object) -> Audit:
    """100 raw texts of 100 to 199 tokens."""
    rows = dataset({"text": "x" * (100 + i)} for i in range(100))
    return Audit(rows, None, healthy_run(**run), encoder(limit), max_seq_length=limit)


def fires() -> Audit:
    return texts(48)


def silent() -> Audit:
    return texts(1024)


@pytest.mark.parametrize(
    ("limit", "run", "expected"),
    [
        (193, {}, "high"),
        (194, {}, "passed"),
        (48, {"packing": True, "packing_strategy": "wrapped"}, "passed"),  # long rows go on in the next block
        (48, {"packing": True, "packing_strategy": "bfd"}, "high"),
        (48, {"packing": True, "versions": {"trl": "0.18.2"}}, "passed"),  # knew no other packing
        (48, {"packing": True, "versions": {}}, "high"),
    ],
)
def test_the_limit_must_hold_the_95th_percentile(limit: int, run: dict[str, object], expected: str) -> None:
    assert verdict(ID, texts(limit, **run)) == expected


def test_the_figures_are_lengths_before_the_cut() -> None:
    audit = dataclasses.replace(fires(), run=None)
    finding = only(ID, audit)
    whole = texts(2**20).token_counts
    assert finding.figures["needed"] == sorted(whole)[94]
    assert finding.figures["longest"] == whole.max()
    assert finding.title.startswith("`max_seq_length` is 48, but the rows' p95 length is")
    assert len(finding.example_ids) == np.count_nonzero(whole > 48)
