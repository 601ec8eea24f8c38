"""The audit's report: what was read, what the checks found, which passed and which could not run.

Its JSON form is `audit.json`, and `docs/audit.schema.json` is generated from it (`audit_schema`). Everything is
finite or null, and nothing depends on the time of day.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from gradian.report.model import Data, Part, ReportedFinding, Text, plain

SCHEMA_VERSION = 1

Value = Annotated[Any, BeforeValidator(plain)]


class DatasetRead(Part):
    """A dataset as it was read."""

    path: Text
    n: int
    """Rows, unusable ones included."""
    shapes: Data
    """Rows of each shape."""
    notes: tuple[Text, ...] = ()
    """What was done to read the file."""


class Setting(Part):
    """One setting that the run folder records."""

    name: Text
    value: Value
    source: Text | None = None
    """File and key that it was read from."""


class UnreadFile(Part):
    """Something in the run folder that could not be read, and why."""

    file: Text
    reason: Text


class RunRead(Part):
    """A run folder as it was read."""

    folder: Text
    trainer: Text
    """`gradian`, `transformers`, `trl`, `axolotl`, `llamafactory`, `unsloth` or `unknown`."""
    checkpoint: Text | None
    """Folder that the trainer's state was read from; null when the root has it."""
    base_model: Text | None
    """What the adapter says it was trained on."""
    n_logged: int
    """Rows of the training log."""
    n_evaluations: int
    """Evaluations in the log."""
    global_step: int | None
    """Optimizer steps taken."""
    total_steps: int | None
    """Optimizer steps planned."""
    resumed_from: tuple[int, ...] = ()
    """Steps that training went back to."""
    settings: tuple[Setting, ...] = ()
    lora: Data = Field(default_factory=dict)
    """The adapter's settings."""
    versions: Data = Field(default_factory=dict)
    """Of libraries, where recorded."""
    unread: tuple[UnreadFile, ...] = ()


class Inputs(Part):
    """What the audit looked at; null where it was not given."""

    dataset: DatasetRead | None = None
    eval_dataset: DatasetRead | None = None
    run: RunRead | None = None
    base_model: Text | None = None
    """The model that the user says was fine-tuned."""
    tokenizer: Text | None = None
    max_seq_length: int | None = None
    """Where training cut the rows, in tokens."""
    max_seq_length_source: Text | None = None
    """The flag, or the run folder's file and key."""
    limits: Data = Field(default_factory=dict)
    """The thresholds of the checks, as configured."""


class SkippedPart(Part):
    """A check that could not run."""

    id: Text
    reason: Text
    missing: tuple[Text, ...] = ()
    """Flags that would enable it; empty where the inputs are there but do not say."""


class AuditReport(Part):
    """What the checks have to say about a dataset and a run."""

    schema_version: int = SCHEMA_VERSION
    gradian_version: Text
    summary: Annotated[tuple[Text, ...], Field(min_length=1)]
    """Sentences, most important first, with `code` between backticks."""
    findings: tuple[ReportedFinding, ...]
    """Most severe first."""
    passed: tuple[Text, ...]
    """Checks that ran and found nothing."""
    skipped: tuple[SkippedPart, ...]
    notes: tuple[Text, ...] = ()
    """What was assumed, and which inputs would tell more."""
    inputs: Inputs


def audit_schema() -> dict[str, Any]:
    """Return the JSON schema of `audit.json`, as published in `docs/audit.schema.json`."""
    schema = AuditReport.model_json_schema(mode="serialization")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
