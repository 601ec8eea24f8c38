"""The report: one typed value that every renderer reads.

Its JSON form is `report.json`, and `docs/report.schema.json` is generated from it (`report_schema`).
Everything is finite or null, free mappings have sorted keys, and nothing depends on the time of day, so
equal runs give equal bytes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import Enum
from os import PathLike, fspath
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from gradian.report.escape import encodable
from gradian.types import Finding, Severity

SCHEMA_VERSION = 1


def _finite(value: Any) -> Any:
    # Read as a float first: numpy scalars are not what pydantic calls a number.
    if value is None or isinstance(value, (str, bool)):
        return value
    try:
        number = float(value)
    except (TypeError, OverflowError) as error:
        # The only kind that a validator may raise.
        raise ValueError(str(error)) from None
    return number if math.isfinite(number) else None


def _text(value: Any) -> Any:
    return encodable(value) if isinstance(value, str) else value


def plain(value: Any) -> Any:
    """Return `value` as JSON data: keys text and sorted, NaN and infinities null, numpy scalars and paths plain.

    Raises TypeError for what has no JSON form.
    """
    if isinstance(value, Enum):
        return plain(value.value)
    if isinstance(value, str):
        return encodable(value)
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {
            encodable(str(key)): plain(item)
            for key, item in sorted(value.items(), key=lambda pair: str(pair[0]))
        }
    if isinstance(value, PathLike):
        return plain(fspath(value))
    if isinstance(value, (set, frozenset)):
        return [plain(item) for item in sorted(value, key=str)]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray)):
        return [plain(item) for item in value]
    raise TypeError(f"a report cannot hold a {type(value).__name__}")


Number = Annotated[float | None, BeforeValidator(_finite)]
Text = Annotated[str, BeforeValidator(_text)]
Data = Annotated[dict[str, Any], BeforeValidator(plain)]


class Part(BaseModel):
    """A piece of a report: frozen, closed, documented by its attribute docstrings."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
        hide_input_in_errors=True,
        json_schema_serialization_defaults_required=True,
    )


class Capability(Part):
    """How the capability changed between the base model and the tuned one."""

    name: Text
    metric: Text
    base: Number
    tuned: Number
    delta: Number
    """`tuned - base`, in the metric's unit: share of items, or nats for `loglik`."""
    ci_low: Number
    ci_high: Number
    n_items: int
    verdict: Literal["regressed", "improved", "not_significant"]
    ci_level: Number = 0.95
    proxy_used: bool = False
    """True when the metric is a likelihood and not a check of the answer."""
    n_flipped: int = 0
    """Items that went from right to wrong."""
    n_already_failing: int = 0
    """Items that the base model fails too."""
    mean_margin: Number = None
    """Mean preference of the base model for the wanted answer over the tuned model's, regressed items, in nats."""
    query_signal: Text = "contrastive"
    """What the query gradient was in the end."""


class Excerpt(Part):
    """One training row, shortened to one visible line each way."""

    id: Text
    prompt: Text
    target: Text


class Cluster(Part):
    """Influence of a group of training rows on the capability."""

    id: Text
    label: Text
    n: int
    sum: Number
    """Signed sum of the scores."""
    share_of_negative: Number
    """Share, 0 to 1, of all negative scores."""
    mean: Number
    """Signed mean score of a row."""
    relative_mean: Number = None
    """Mean of score / gradient norm."""
    excerpts: tuple[Excerpt, ...] = ()
    """The most harmful rows."""


class ScoredExample(Part):
    """One training row. Positive score: it reinforced the capability; negative: it degraded it."""

    id: Text
    row: int
    """0-based row of the data set."""
    cluster: Text
    score: Number
    predicted_loss_delta_if_removed: Number
    """score / n: the predicted change of the loss on the capability when this row alone is left out."""
    relative_score: Number = None
    """Score divided by the norm of the row's own gradient."""


class HarmfulExample(Part):
    """A training row's score on one eval item."""

    id: Text
    score: Number


class Item(Part):
    """One eval item, what both models said, and which training rows hurt it."""

    id: Text
    prompt: Text
    expected: Text
    base_answer: Text | None
    tuned_answer: Text | None
    base_score: Number
    tuned_score: Number
    regressed: bool
    margin: Number = None
    """The base model's preference for the wanted answer over the tuned model's, in nats."""
    most_harmful: tuple[HarmfulExample, ...] = ()
    """Most harmful first; empty where the item had no query of its own."""


class ReportedFinding(Part):
    """One thing that a check or the verdict has to say."""

    id: Text
    severity: Severity
    title: Text
    evidence: Text
    example_ids: tuple[Text, ...]
    fix: Text
    figures: Data

    @classmethod
    def of(cls, finding: Finding) -> ReportedFinding:
        """Return the finding in its reported form."""
        return cls(
            id=finding.id,
            severity=finding.severity,
            title=finding.title,
            evidence=finding.evidence,
            example_ids=finding.example_ids,
            fix=finding.fix,
            figures=dict(finding.figures),
        )


class Engines(Part):
    """Which engines scored the rows, and how far the rankings agree."""

    primary: Text
    cross_check: Text | None = None
    spearman: Number = None
    """Rank correlation of the two engines' scores."""
    relative_spearman: Number = None
    """Rank correlation of raw and relative scores."""
    ranked_by: Literal["raw", "relative"] = "raw"
    """Which score orders examples and clusters."""


class Skipped(Part):
    """Something that was not done, and why."""

    id: Text
    reason: Text


class Report(Part):
    """What Gradian has to say about one run."""

    schema_version: int = SCHEMA_VERSION
    gradian_version: Text
    diagnosed: bool
    """False when the scores must not be read as a diagnosis: no eval set, or no regression beyond noise."""
    summary: Annotated[tuple[Text, ...], Field(min_length=1)]
    """Sentences, most important first, with `code` between backticks."""
    capability: Capability | None
    """null without an eval set."""
    clusters: tuple[Cluster, ...]
    """Most harmful first."""
    findings: tuple[ReportedFinding, ...]
    """Most severe first."""
    engines: Engines
    items: tuple[Item, ...] = ()
    top_examples: tuple[Excerpt, ...] = ()
    """Excerpts of the most harmful rows of all, most harmful first."""
    skipped: tuple[Skipped, ...] = ()
    provenance: Data = Field(default_factory=dict)
    """Everything the numbers come from: index manifest, library versions, implementation of each op, config."""
    examples: tuple[ScoredExample, ...]
    """Every training row, in the order of the data set."""

    @model_validator(mode="after")
    def _rows_are_in_order(self) -> Report:
        # Rows are dropped by their number, and told by their id: each must be in its place.
        for place, example in enumerate(self.examples):
            if example.row != place:
                raise ValueError(f"examples.{place} is said to be row {example.row}")
        return self


def report_schema() -> dict[str, Any]:
    """Return the JSON schema of `report.json`, as published in `docs/report.schema.json`."""
    schema = Report.model_json_schema(mode="serialization")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
