from __future__ import annotations

import json
from enum import Enum
from pathlib import Path

import numpy as np
import pytest
from jsonschema import Draft202012Validator
from pydantic import ValidationError

from gradian.report import jsonfile
from gradian.report.model import Engines, Report, ReportedFinding, plain, report_schema
from gradian.types import Finding, Severity

from . import samples
from .golden import assert_golden


class Colour(Enum):
    RED = "red"


class TestSchema:
    def test_the_published_schema_is_the_models(self) -> None:
        assert_golden(json.dumps(report_schema(), indent=2) + "\n", "docs/report.schema.json")

    @pytest.mark.parametrize("make", [samples.poisoned, samples.not_significant, samples.without_eval_set])
    def test_a_real_report_is_valid_under_it(self, make: object) -> None:
        Draft202012Validator.check_schema(report_schema())
        Draft202012Validator(report_schema()).validate(json.loads(jsonfile.render(make())))  # type: ignore[operator]

    @pytest.mark.parametrize(
        "key", ["capability", "clusters", "examples", "findings", "engines", "provenance"]
    )
    def test_the_keys_that_scripts_read_are_required(self, key: str) -> None:
        data = json.loads(jsonfile.render(samples.poisoned()))
        del data[key]
        assert not Draft202012Validator(report_schema()).is_valid(data)

    def test_an_unknown_key_is_invalid(self) -> None:
        data = json.loads(jsonfile.render(samples.poisoned()))
        assert not Draft202012Validator(report_schema()).is_valid({**data, "extra": 1})


class TestValues:
    def test_numbers_that_json_lacks_become_null(self) -> None:
        engines = Engines(primary="datainf", spearman=float("nan"), relative_spearman=np.float64("inf"))
        assert (engines.spearman, engines.relative_spearman) == (None, None)

    def test_numpy_numbers_become_floats(self) -> None:
        value = Engines(primary="datainf", spearman=np.float32(0.5)).spearman
        assert type(value) is float
        assert value == 0.5

    def test_a_report_cannot_be_changed(self) -> None:
        with pytest.raises(ValidationError, match="frozen"):
            samples.poisoned().diagnosed = False  # type: ignore[misc]

    def test_a_report_reads_back_from_its_json(self) -> None:
        report = samples.poisoned()
        assert Report.model_validate_json(jsonfile.render(report)) == report

    def test_a_lone_surrogate_in_a_finding_does_not_stop_the_report(self) -> None:
        finding = ReportedFinding.of(Finding("x.y", Severity.LOW, "bad \ud800", figures={"\ud800": "\udfff"}))
        assert (finding.title, finding.figures) == ("bad \\ud800", {"\\ud800": "\\udfff"})


class TestPlain:
    def test_what_python_holds_becomes_json_data_with_sorted_keys(self) -> None:
        value = {
            "b": np.array([1.0, np.nan]),
            "a": (np.int64(3), Path("x/y"), Colour.RED, True, None),
            "c": {2: {"z", "y"}, 1: np.float64("-inf")},
        }
        assert plain(value) == {
            "a": [3, "x/y", "red", True, None],
            "b": [1.0, None],
            "c": {"1": None, "2": ["y", "z"]},
        }
        assert list(plain(value)) == ["a", "b", "c"]

    def test_what_has_no_json_form_is_refused(self) -> None:
        with pytest.raises(TypeError, match="cannot hold a complex"):
            plain({"x": 1j})
