"""The verification: what was dropped, how the capability stands after a retraining, and whether it came back.

Its JSON form is `verify.json`, and `docs/verify.schema.json` is generated from it (`verification_schema`). Everything
is finite or null, and nothing depends on the time of day.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from gradian.report.model import Data, Number, Part, Text

SCHEMA_VERSION = 1

Outcome = Literal["recovered", "partly_recovered", "not_recovered"]


class Change(Part):
    """A mean difference over the same eval items, with its bootstrap interval, in the metric's unit."""

    delta: Number
    ci_low: Number
    ci_high: Number


class Round(Part):
    """One adapter, measured against the base model."""

    run: Text
    """Folder of its training run."""
    rows: int
    """Rows it was trained on."""
    base: Number
    tuned: Number
    delta: Number
    """`tuned - base`, in the metric's unit."""
    ci_low: Number
    ci_high: Number
    verdict: Literal["regressed", "improved", "not_significant"]


class Dropped(Part):
    """The rows that were left out."""

    cluster: Text
    label: Text
    n: int
    of: int
    """Rows of the dataset before."""
    ids: tuple[Text, ...]


class Control(Part):
    """A retraining without as many other rows, drawn at random from those that were not accused."""

    round: Round
    ids: tuple[Text, ...]
    """The rows it left out."""
    gain: Change
    """Of the control over the first round."""
    lead: Change
    """Of the second round over the control."""


class VerifiedItem(Part):
    """One eval item: what each model said to it."""

    id: Text
    prompt: Text
    expected: Text
    base_answer: Text | None
    before_answer: Text | None
    after_answer: Text | None
    base_score: Number
    before_score: Number
    after_score: Number
    lost: bool
    """The first round scored below the base model."""
    came_back: bool
    """It was lost, and the second round scores as the base model or better."""


class Verification(Part):
    """Whether a capability came back without the accused rows."""

    schema_version: int = SCHEMA_VERSION
    gradian_version: Text
    outcome: Outcome
    """`recovered`: better than before beyond noise, and no regression left. `partly_recovered`: better, and still a
    regression. `not_recovered`: no better beyond noise."""
    summary: Annotated[tuple[Text, ...], Field(min_length=1)]
    """Sentences, most important first, with `code` between backticks."""
    capability: Text
    metric: Text
    ci_level: Number
    before: Round
    """With every row: the run that was attributed."""
    after: Round
    """Without the accused rows."""
    gain: Change
    """Tuned score of `after` over `before`."""
    dropped: Dropped
    control: Control | None
    """null unless it was asked for."""
    items: tuple[VerifiedItem, ...]
    notes: tuple[Text, ...] = ()
    """What differs between the rounds beside the rows, and what was not done."""
    provenance: Data = Field(default_factory=dict)


def verification_schema() -> dict[str, Any]:
    """Return the JSON schema of `verify.json`, as published in `docs/verify.schema.json`."""
    schema = Verification.model_json_schema(mode="serialization")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
