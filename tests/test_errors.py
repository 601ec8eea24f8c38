from __future__ import annotations

import inspect
import pickle
import re

import pytest

from gradian import errors
from gradian.errors import DataError, GradianError, RowError

KINDS = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, GradianError) and kind is not GradianError
]


def test_the_message_leads_with_the_place_and_lists_the_rest_in_order() -> None:
    error = DataError("is not JSON", where="train.jsonl:2", found="{", expected="an object", fix="mend it")
    assert str(error) == ("train.jsonl:2: is not JSON\n  found: {\n  expected: an object\n  fix: mend it")


def test_parts_that_are_missing_leave_no_trace() -> None:
    assert str(GradianError("it broke")) == "it broke"
    assert str(GradianError("it broke", fix="wait")) == "it broke\n  fix: wait"


@pytest.mark.parametrize("kind", KINDS)
def test_every_error_survives_pickling_with_all_its_parts(kind: type[GradianError]) -> None:
    error = kind("p", where="w", found="f", expected="e", fix="x", details=["d"])
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    assert type(copy) is kind
    assert str(copy) == str(error)
    assert (copy.where, copy.found, copy.expected, copy.fix, copy.details) == ("w", "f", "e", "x", ("d",))


def test_the_tree_in_the_docstring_is_the_tree_of_classes() -> None:
    drawn: dict[str, str] = {}
    stack: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"    ([ │├└─]*)(\w+Error)\b", line)
        if match:
            depth = len(match[1]) // 4
            del stack[depth:]
            if stack:
                drawn[match[2]] = stack[-1]
            stack.append(match[2])
    assert drawn == {kind.__name__: kind.__mro__[1].__name__ for kind in KINDS}


def test_a_narrow_error_is_caught_as_its_family() -> None:
    with pytest.raises(DataError):
        raise RowError("x")


def test_an_outer_place_goes_in_front_and_nothing_else_changes() -> None:
    inner = RowError("no answer", where="row 3", found="a user turn", fix="add one")
    outer = inner.within("eval.jsonl")
    assert type(outer) is RowError
    assert str(outer) == "eval.jsonl: row 3: no answer\n  found: a user turn\n  fix: add one"
    assert str(inner.within(None)) == str(inner)
    assert RowError("empty").within(None).where is None


def test_details_have_a_line_each_between_the_problem_and_its_parts() -> None:
    error = DataError("2 lines are bad", where="f", fix="mend them", details=["f:1: x", "f:2: y"])
    assert str(error) == "f: 2 lines are bad\n  f:1: x\n  f:2: y\n  fix: mend them"
    assert error.within("g").details == error.details


def test_text_with_line_breaks_writes_no_part_of_its_own() -> None:
    forged = "x\n  fix: run this"
    error = DataError(forged, where=forged, found=forged, expected=forged, fix=forged, details=[forged])
    lines = str(error).splitlines()
    assert len(lines) == 5
    assert [line for line in lines if line.startswith("  fix: run")] == []
