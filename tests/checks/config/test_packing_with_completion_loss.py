from __future__ import annotations

import dataclasses
import json

import pytest

from gradian.checks.audit import Audit
from tests.checks.building import CASES, audit_run, dataset, pairs
from tests.checks.fixtures import judged, verdict

ID = "config.packing_with_completion_loss"


def case(name: str) -> Audit:
    """A set of arguments of case 27 as a run."""
    arguments = json.loads((CASES / f"27-packing-and-masking/run_args_{name}.json").read_text())
    versions = {"trl": arguments.pop("trl")}
    return audit_run(versions=versions, **arguments)


def fires() -> Audit:
    return case("a")


def silent() -> Audit:
    return case("b")


def test_wrapped_packing_in_trl_0_19_loses_the_mask_and_lets_rows_attend() -> None:
    faults = [finding.figures["fault"] for finding in judged(ID, case("a")).findings]
    assert faults == ["mask_lost", "rows_attend"]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"packing_strategy": "ffd", "versions": {"trl": "0.19.1"}}, "high"),
        ({"packing_strategy": None, "versions": {"trl": "0.19.1"}}, "high"),
        ({"packing_strategy": None, "versions": {"trl": "0.18.2"}}, "high medium"),
        ({"packing_strategy": None, "versions": {"trl": "0.20.0"}}, "passed"),
        ({"packing_strategy": "wrapped", "versions": {"trl": "1.16.0"}}, "medium"),
        ({"packing_strategy": "bfd", "versions": {}}, "skipped"),
        ({"packing": None}, "skipped"),
        ({"packing": False, "versions": {}}, "passed"),
        ({"assistant_only_loss": False, "versions": {}}, "passed"),  # nothing to lose
        ({"assistant_only_loss": None, "completion_only_loss": True, "versions": {"trl": "0.19.0"}}, "high"),
        ({"trainer": "axolotl", "versions": {}}, "passed"),
        ({"trainer": "llamafactory", "assistant_only_loss": None, "packing_strategy": None}, "medium"),
        ({"trainer": "llamafactory", "packing_strategy": "neat_packing"}, "passed"),
        ({"trainer": "llamafactory", "train_on_inputs": True}, "passed"),
    ],
)
def test_the_trainers_version_decides(changes: dict[str, object], expected: str) -> None:
    assert verdict(ID, audit_run(**{"packing": True, **changes})) == expected


def test_prompt_completion_rows_are_masked_unless_the_settings_say_otherwise() -> None:
    old = {
        "packing": True,
        "packing_strategy": "ffd",
        "versions": {"trl": "0.19.1"},
        "assistant_only_loss": None,
    }
    unset = dataclasses.replace(audit_run(**old), dataset=pairs(3))
    assert verdict(ID, unset) == "high"
    off = dataclasses.replace(audit_run(**old, completion_only_loss=False), dataset=pairs(3))
    assert verdict(ID, off) == "passed"
    texts = dataclasses.replace(audit_run(**old), dataset=dataset([{"text": "a"}]))
    assert verdict(ID, texts) == "passed"
