"""Frozen values that cross layers. No torch here: the command line starts without it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


class Severity(str, Enum):
    """How much a finding matters; iteration order is most severe first."""

    CRITICAL = "critical"
    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"
    INFO = "info"

    @property
    def rank(self) -> int:
        """0 for critical, rising as the severity falls: a sort key."""
        return list(Severity).index(self)


@dataclass(frozen=True)
class Finding:
    """One thing that a check or the verdict has to say.

    Attributes:
        id: stable identifier such as `data.duplicates`.
        title: one line, with the figures in it.
        evidence: what was seen, in sentences.
        fix: the setting to change and the value to try, or what to do.
        example_ids: the examples concerned, in dataset order.
        figures: the numbers behind the title, for scripts; JSON values only.
    """

    id: str
    severity: Severity
    title: str
    evidence: str = ""
    fix: str = ""
    example_ids: tuple[str, ...] = ()
    figures: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Message:
    """One turn of a conversation.

    Attributes:
        role: `system`, `user`, `assistant`, `tool`, or whatever else the row says.
        content: the turn's text; empty where the row has null.
        extra: the turn's other fields (`tool_calls`, `tool_call_id`, `name`, ...), handed to the chat
            template as they are; None when there are none.
    """

    role: str
    content: str
    extra: Mapping[str, Any] | None = field(default=None, hash=False)


@dataclass(frozen=True)
class Example:
    """One dataset row, normalised to turns.

    Attributes:
        id: `sha256(canonical row)[:12]-position`.
        position: 0-based row in dataset order.
        shape: the row shape it was read as (`messages`, `prompt_completion`, `question_answer`,
            `input_output`, `instruction`, `text`; `unknown` for a row that has no known keys and is
            taken as raw text).
        messages: the turns; empty for a `text` row.
        text: the raw text of a `text` row, else None.
        cluster: the row's declared `cluster_id` or `cluster`, as text, else None.
        tools: the row's tool definitions, handed to the chat template, else None.
        problem: why the row cannot be used (an image part, a turn without a role), else None. Such a row
            keeps its place, so positions stay those of the file, and encodes to a RowError.
    """

    id: str
    position: int
    shape: str
    messages: tuple[Message, ...] = ()
    text: str | None = None
    cluster: str | None = None
    tools: tuple[Mapping[str, Any], ...] | None = field(default=None, hash=False)
    problem: str | None = None

    @property
    def prompt(self) -> str:
        """The last turn before the final assistant turn, for excerpts; empty for raw text."""
        return self.messages[-2].content if len(self.messages) > 1 else ""

    @property
    def target(self) -> str:
        """The final assistant turn, or the raw text: what the row teaches, or for an eval row the wanted answer."""
        if self.messages:
            last = self.messages[-1]
            return last.content if last.role == "assistant" else ""
        return self.text or ""


@dataclass(frozen=True, eq=False)
class EncodedExample:
    """An example as tokens with a loss mask.

    Attributes:
        id: the example's id.
        position: the example's 0-based row.
        input_ids: int64 [tokens].
        supervised: bool [tokens]; True where the token is a target of the loss. Never True at token 0,
            which nothing predicts.
        truncated: tokens cut off by `max_seq_length`.
        truncated_supervised: how many of those were targets.
    """

    id: str
    position: int
    input_ids: IntArray
    supervised: BoolArray
    truncated: int = 0
    truncated_supervised: int = 0

    def __len__(self) -> int:
        return int(self.input_ids.shape[0])

    @property
    def n_supervised(self) -> int:
        """Number of target tokens."""
        return int(self.supervised.sum())


@dataclass(frozen=True)
class BlockSpec:
    """One slice of the gradient vector.

    Attributes:
        name: `<module>` for module blocks (A then B, flattened), `<module>.lora_A` or `.lora_B` for
            matrix blocks.
        shape: the shapes behind it joined in order, as ((r, in), (out, r)), or one of them, or
            ((projection_dim,),).
        offset: where the block begins in the whole gradient vector.
    """

    name: str
    shape: tuple[tuple[int, ...], ...]
    offset: int

    @property
    def size(self) -> int:
        """Number of elements, d_l."""
        return sum(prod(part) for part in self.shape)


@dataclass(frozen=True, eq=False)
class Scores:
    """Influence of n training examples on m queries.

    Attributes:
        engine: the engine that made them.
        values: float64 [m, n]. Positive: the example reinforced the queried behaviour; negative: it
            degraded it (see `gradian.query.scorer`).
        query_ids: what each row of `values` is about.
    """

    engine: str
    values: FloatArray
    query_ids: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class ScoreSummary:
    """What is kept of the influence of n training examples on m queries where the scores are not kept.

    Equal scores stand in dataset order. The signs are those of `Scores`.

    Attributes:
        engine: the engine that made the scores.
        query_ids: what each row of the arrays is about.
        lowest: float64 [m, k], each query's lowest scores, rising; fewer columns than asked for where there
            are fewer examples.
        lowest_rows: int64 [m, k], the training row of each.
        highest: float64 [m, k], each query's highest scores, falling.
        highest_rows: int64 [m, k].
        clusters: cluster ids by their first row; empty without an assignment.
        cluster_sums: float64 [m, clusters], the sum of each cluster's scores.
    """

    engine: str
    query_ids: tuple[str, ...]
    lowest: FloatArray
    lowest_rows: IntArray
    highest: FloatArray
    highest_rows: IntArray
    clusters: tuple[str, ...]
    cluster_sums: FloatArray
