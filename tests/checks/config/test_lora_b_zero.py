from __future__ import annotations

import pytest

from gradian.checks.audit import Audit
from tests.checks.building import audit_run
from tests.checks.fixtures import only, verdict

ID = "config.lora_b_zero"
LAYERS = tuple(f"model.layers.{i}.mlp.up_proj" for i in range(4))


def fires() -> Audit:
    return audit_run(lora={"zero_b": LAYERS[:2], "n_modules": 4})


def silent() -> Audit:
    return audit_run(lora={"zero_b": (), "n_modules": 4})


@pytest.mark.parametrize(
    ("lora", "expected"),
    [
        ({"zero_b": LAYERS[:1], "n_modules": 4}, "high"),
        ({"zero_b": LAYERS, "n_modules": 4}, "critical"),
        ({"zero_b": ("model.vision_tower.blocks.0.fc1",), "n_modules": 4}, "low"),
        ({"zero_b": ("model.vision_tower.blocks.0.fc1", LAYERS[0]), "n_modules": 4}, "high"),
        ({"n_modules": None}, "skipped"),
        (None, "skipped"),
    ],
)
def test_modules_without_an_update_are_counted(lora: object, expected: str) -> None:
    assert verdict(ID, audit_run(lora=lora)) == expected


def test_an_adapter_that_is_zero_everywhere_is_called_so() -> None:
    title = only(ID, audit_run(lora={"zero_b": LAYERS, "n_modules": 4})).title
    assert title == "`lora_B` is exactly zero in all of 4 modules: the adapter does nothing"
