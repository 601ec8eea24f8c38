from __future__ import annotations

import json

import pytest
from jsonschema import Draft202012Validator

from gradian.report import jsonfile
from gradian.report.verification.model import verification_schema
from tests.report.golden import assert_golden

from . import samples


def test_the_published_schema_is_the_models() -> None:
    assert_golden(json.dumps(verification_schema(), indent=2) + "\n", "docs/verify.schema.json")


@pytest.mark.parametrize("make", [samples.recovered, samples.not_recovered])
def test_a_verification_is_valid_under_it(make: object) -> None:
    Draft202012Validator.check_schema(verification_schema())
    data = json.loads(jsonfile.render(make()))  # type: ignore[operator]
    Draft202012Validator(verification_schema()).validate(data)
    assert not Draft202012Validator(verification_schema()).is_valid({**data, "extra": 1})
    assert not Draft202012Validator(verification_schema()).is_valid({**data, "outcome": "maybe"})
