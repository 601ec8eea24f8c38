from __future__ import annotations

import dataclasses
import json
from importlib.metadata import PackageNotFoundError

import pytest
from peft import LoraConfig

from gradian.checks.audit import Audit
from gradian.checks.config import unknown_adapter_option as module
from tests.checks.building import CASES, audit_run
from tests.checks.fixtures import only, verdict

ID = "config.unknown_adapter_option"
CASE = json.loads((CASES / "41-future-config-keys/adapter/adapter_config.json").read_text())


def adapter(**changes: object) -> Audit:
    return audit_run(lora={"raw": {**CASE, "use_bdlora": None, **changes}})


def fires() -> Audit:
    return adapter(use_bdlora={"x": 1})


def silent() -> Audit:
    return adapter()


def test_the_case_fires_for_the_key_that_is_set_and_for_no_null_one() -> None:
    finding = only(ID, audit_run(lora={"raw": CASE}))
    assert finding.figures == {"key": "use_bdlora", "peft_version": "9.9.0"}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"made_up_in_2030": True}, "high"),
        ({"made_up_in_2030": True, "use_qalora": True}, "high high"),
        ({"made_up_in_2030": False, "another": {}}, "passed"),
        ({"use_dora": True, "target_parameters": ["x"], "rank_pattern": {"q_proj": 4}}, "passed"),
        ({"peft_type": "LOHA", "made_up_in_2030": True}, "skipped"),
    ],
)
def test_only_keys_that_are_set_and_not_understood_fire(changes: dict[str, object], expected: str) -> None:
    assert verdict(ID, adapter(**changes)) == expected


def test_a_run_without_an_adapter_is_not_judged() -> None:
    assert verdict(ID, audit_run(lora=None)) == "skipped"


def test_without_peft_the_check_cannot_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(module, "version", missing)
    module.known_options.cache_clear()
    assert verdict(ID, fires()) == "skipped"
    module.known_options.cache_clear()


def test_the_options_read_from_source_are_those_of_the_class() -> None:
    fields = {field.name for field in dataclasses.fields(LoraConfig)}
    assert fields <= module.known_options()
    assert module.known_options() - fields <= {"runtime_config", "auto_mapping", "peft_version"}


def test_an_adapter_without_a_peft_version_names_none() -> None:
    run = audit_run(lora={"raw": {"r": 8, "future_magic": True}})
    assert "does not say which PEFT" in only(ID, run).evidence
