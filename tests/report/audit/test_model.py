from __future__ import annotations

import json

import pytest
from jsonschema import Draft202012Validator

from gradian.report import jsonfile
from gradian.report.audit.model import audit_schema
from tests.report.golden import assert_golden

from . import samples


def test_the_published_schema_is_the_models() -> None:
    assert_golden(json.dumps(audit_schema(), indent=2) + "\n", "docs/audit.schema.json")


@pytest.mark.parametrize("make", [samples.faulty, samples.clean])
def test_a_real_audit_is_valid_under_it(make: object) -> None:
    Draft202012Validator.check_schema(audit_schema())
    data = json.loads(jsonfile.render(make()))  # type: ignore[operator]
    Draft202012Validator(audit_schema()).validate(data)
    assert not Draft202012Validator(audit_schema()).is_valid({**data, "extra": 1})
    for key in ("summary", "findings", "passed", "skipped", "inputs"):
        assert not Draft202012Validator(audit_schema()).is_valid({k: v for k, v in data.items() if k != key})
