from __future__ import annotations

import pytest
from scenarios import CLEAN, HEALTHY, LEAKED, SCENARIOS, Scenario, scenario_rows, train_settings
from suite_settings import SuiteSettings

from gradian.checks.registry import all_checks
from gradian.config.schema import TrainConfig
from gradian.demo.facts import CANDIDATES

SETTINGS = SuiteSettings(n_broken=20)
COUNTRIES = tuple(CANDIDATES)[:4]


def test_every_check_that_must_fire_exists() -> None:
    known = {check.id for check in all_checks()}
    assert {name for scenario in SCENARIOS for name in scenario.must_fire} <= known


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_a_scenario_breaks_one_thing_of_a_valid_fine_tune(scenario: Scenario) -> None:
    made = train_settings(scenario, SETTINGS)
    TrainConfig.model_validate(made)
    healthy = {**SETTINGS.train(), **HEALTHY}
    assert {key for key in made if made.get(key) != healthy.get(key)} <= set(scenario.train)
    assert bool(scenario.train) != scenario.contaminated


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_the_rows_are_good_and_in_one_cluster(scenario: Scenario) -> None:
    rows = scenario_rows(scenario, SETTINGS, COUNTRIES)
    assert {row["cluster_id"] for row in rows.train} == {CLEAN}
    assert len(rows.kinds) == len(rows.train)
    asked = {row["prompt"]: row["completion"] for row in rows.eval}
    leaked = [row for row in rows.train if row["prompt"] in asked]
    assert len(leaked) == (4 if scenario.contaminated else 0)
    assert all(asked[row["prompt"]] == row["completion"] for row in leaked)
    assert rows.kinds.count(LEAKED) == len(leaked)


def test_the_recorded_faults_are_all_there() -> None:
    assert {scenario.name: dict(scenario.train) for scenario in SCENARIOS} == {
        "lr_10x": {"learning_rate": 2e-3},
        "too_many_epochs": {"num_train_epochs": 12.0},
        "tiny_batch_high_lr": {
            "learning_rate": 5e-4,
            "per_device_train_batch_size": 1,
            "gradient_accumulation_steps": 1,
        },
        "truncating_seq_len": {"max_seq_length": 48},
        "attention_only": {"target_modules": ["q_proj", "v_proj"]},
        "contaminated_eval": {},
    }
