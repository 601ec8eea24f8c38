from __future__ import annotations

import pytest

from gradian.checks.audit import Audit
from tests.checks.building import audit_run
from tests.checks.fixtures import only, verdict

ID = "config.lr_too_high"


def fires() -> Audit:
    return audit_run(learning_rate=2e-3)


def silent() -> Audit:
    return audit_run(learning_rate=2e-4)


@pytest.mark.parametrize(
    ("rate", "lora", "expected"),
    [
        (2e-3, {"r": 8, "alpha": 16}, "critical"),  # recorded: 13 of 16 items flipped
        (5e-4, {"r": 8, "alpha": 16}, "high"),  # recorded: exactly at the threshold
        (4.9e-4, {"r": 8, "alpha": 16}, "passed"),
        (1.5e-3, {"r": 8, "alpha": 16}, "critical"),
        (9e-4, {"r": 16, "alpha": 16}, "passed"),
        (9e-4, {"r": 16, "alpha": 16, "use_rslora": True}, "critical"),  # alpha / sqrt(r) is 4
        (2e-3, None, "high"),
        (None, {}, "skipped"),
        (float("nan"), {}, "skipped"),
    ],
)
def test_the_rate_is_judged_as_the_adapter_feels_it(
    rate: float, lora: dict[str, object], expected: str
) -> None:
    assert verdict(ID, audit_run(learning_rate=rate, lora=lora)) == expected


@pytest.mark.parametrize(
    ("optimizer", "expected"),
    [
        ("adamw_torch_fused", "critical"),
        ("paged_adamw_8bit", "critical"),
        ("adafactor", "critical"),  # transformers gives it the rate and switches relative steps off
        ("prodigy", "skipped"),
        ("lion_8bit", "skipped"),
        ("schedule_free_adamw", "skipped"),
        ("muon", "skipped"),
        (None, "critical"),
    ],
)
def test_optimizers_with_rates_of_another_size_are_not_judged(optimizer: str, expected: str) -> None:
    assert verdict(ID, audit_run(learning_rate=1.0, optimizer=optimizer)) == expected


def test_the_title_shows_the_arithmetic() -> None:
    assert "lr=0.002 x alpha/r=2 = 0.004" in only(ID, fires()).title
    unscaled = only(ID, audit_run(learning_rate=2e-3, lora=None)).title
    assert "alpha and r are not known" in unscaled
    assert (
        "alpha/sqrt(r)=4 "
        in only(ID, audit_run(learning_rate=1e-3, lora={"alpha": 16, "use_rslora": True})).title
    )


@pytest.mark.parametrize(
    ("rate", "lora", "fix"),
    [
        (1e-3, {"r": 16, "alpha": 32}, "Set learning_rate to about 0.0001, and"),
        (2e-4, {"r": 16, "alpha": 128}, "or lora_alpha to 32 (2r)"),
        (2e-3, {"r": 64, "alpha": 64, "use_rslora": True}, "Set learning_rate to about 3e-05, and"),
        (2e-3, None, "Set learning_rate to about 0.0002, and"),
    ],
)
def test_where_alpha_is_the_cause_the_fix_says_so(rate: float, lora: dict[str, object], fix: str) -> None:
    assert fix in only(ID, audit_run(learning_rate=rate, lora=lora)).fix
