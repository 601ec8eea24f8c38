from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradian.runs.scalars import as_bool, as_bool_or_text, as_count, as_finite, as_float, as_int, as_text

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(), st.lists, max_leaves=3
)


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (1, 1.0),
        ("2e-4", 2e-4),
        ("1e5", 1e5),
        (" .5 ", 0.5),
        ("1_000", 1000.0),
        ("tensor(0.5)", 0.5),
        ("tensor(0.5, device='cuda:0')", 0.5),
        ("tensor([1.25e-3], device='cuda:0', dtype=torch.bfloat16)", 1.25e-3),
        ("inf", math.inf),
        ("-Infinity", -math.inf),
        (10**400, math.inf),
        (True, None),
        ("1.2.3", None),
        ("about 3", None),
        ("", None),
        ("9" * 1000, None),
        ([1], None),
    ],
)
def test_numbers_in_every_spelling(value: Any, number: float | None) -> None:
    assert as_float(value) == number


@pytest.mark.parametrize("value", ["nan", "NaN", "tensor(nan)", "tensor(nan, device='cuda:0')", math.nan])
def test_nan_in_every_spelling(value: Any) -> None:
    assert math.isnan(as_float(value) or 0)


@pytest.mark.parametrize(
    ("value", "number"),
    [
        *((3, 3), (3.0, 3), ("3", 3), (3.5, None), (math.nan, None), (math.inf, None), (True, None)),
        *((2**62, 2**62), (2**63, None), (-(10**300), None), (1e300, None)),
    ],
)
def test_whole_numbers(value: Any, number: int | None) -> None:
    assert as_int(value) == number


def test_a_text_as_long_as_a_book_is_no_setting() -> None:
    assert as_text("x" * 16_384) is not None
    assert as_text("x" * 16_385) is None


def test_settings_are_finite_and_counts_positive() -> None:
    assert [as_finite(value) for value in ("2e-4", "nan", math.inf, -1)] == [2e-4, None, None, -1.0]
    assert [as_count(value) for value in (3, "4", 0, -1, 2.5)] == [3, 4, None, None, None]


def test_truth_and_text() -> None:
    assert [as_bool(value) for value in (True, 0, "yes", "False", "auto", 2, None)] == [
        *(True, False, True, False, None, None, None)
    ]
    assert [as_bool_or_text(value) for value in ("auto", "true", None)] == ["auto", True, None]
    assert [as_text(value) for value in ("a", "", 1)] == ["a", None, None]


@settings(deadline=None, max_examples=50)
@given(ANYTHING)
def test_nothing_raises(value: Any) -> None:
    for convert in (as_float, as_finite, as_int, as_count, as_bool, as_bool_or_text, as_text):
        convert(value)
