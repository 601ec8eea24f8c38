from __future__ import annotations

import pytest

from gradian.checks.audit import Audit
from gradian.runs.artifact import Resume
from tests.checks.building import audit_run
from tests.checks.fixtures import only, verdict

ID = "dynamics.resume_overlap"
# Case 32 as its reader gives it.
CASE = Resume(from_step=900, overlapping=(900, 950), batch_sizes=(2, 4))


def fires() -> Audit:
    return audit_run(resumes=(CASE,))


def silent() -> Audit:
    return audit_run(resumes=())


@pytest.mark.parametrize(
    ("resumes", "expected"),
    [((Resume(900, (950,)),), "low"), ((Resume(900, (950,), (2, 2)), CASE), "medium low")],
)
def test_a_changed_batch_size_weighs_more(resumes: tuple[Resume, ...], expected: str) -> None:
    assert verdict(ID, audit_run(resumes=resumes)) == expected


def test_steps_and_batch_sizes_are_named() -> None:
    assert only(ID, fires()).title == (
        "The run was resumed at step 900: 2 logged step(s) were trained twice, with a batch size that went from 2 to 4"
    )
