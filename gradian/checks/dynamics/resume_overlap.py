"""The run went back and trained some steps twice.

What it detects
    The log of a resumed run repeats steps, or its batch size changed on the way. A changed batch size is medium,
    repeated steps alone are low.

Why it matters
    A resume goes back to the last checkpoint. With another batch size the same step number stands for other
    rows: some are seen twice and some never, so "one epoch" is not one. Curves that are read by step jump.

What to do
    Resume with the settings that the run was started with, or train again from the start where it matters which
    rows were seen.
"""

from __future__ import annotations

from collections.abc import Iterator

from gradian.checks.audit import Audit
from gradian.checks.dynamics._log import logged
from gradian.checks.registry import Need, check
from gradian.runs.artifact import Resume
from gradian.types import Finding, Severity


@check("dynamics.resume_overlap", "Steps trained twice after a resume", needs=(Need.RUN,), addition=True)
def resume_overlap(audit: Audit) -> Iterator[Finding]:
    """Hand on each time that the run went back."""
    yield from map(_resumed, logged(audit).resumes)


def _resumed(resume: Resume) -> Finding:
    steps, sizes = resume.overlapping, resume.batch_sizes
    again = f": {len(steps)} logged step(s) were trained twice" if steps else ""
    changed = len(set(sizes)) > 1
    sized = f", with a batch size that went from {sizes[0]} to {sizes[-1]}" if changed else ""
    return Finding(
        "dynamics.resume_overlap",
        Severity.MEDIUM if changed else Severity.LOW,
        f"The run was resumed at step {resume.from_step}{again}{sized}",
        (f"Logged again: {', '.join(map(str, steps[:10]))}. " if steps else "")
        + "Of a step that is logged again the later row counts here.",
        "Resume with the batch size that the run was started with"
        + (f", {sizes[0]}" if changed else "")
        + "; train again from the start if it matters which rows were seen.",
        figures={"from_step": resume.from_step, "overlapping": list(steps), "batch_sizes": list(sizes)},
    )
