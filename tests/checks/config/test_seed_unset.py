from __future__ import annotations

from gradian.checks.audit import Audit
from gradian.runs.artifact import HyperParameters
from tests.checks.building import audit_run
from tests.checks.fixtures import verdict


def fires() -> Audit:
    return audit_run(seed=None)


def silent() -> Audit:
    return audit_run(seed=0)


def test_a_folder_without_any_settings_says_nothing_about_the_seed() -> None:
    assert verdict("config.seed_unset", audit_run(hyper=HyperParameters())) == "skipped"
