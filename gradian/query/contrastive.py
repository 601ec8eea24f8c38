"""Query gradients: which direction in adapter space is the behaviour that was lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from gradian.data.chat import ChatEncoder
from gradian.grads.collect import GradientCollector
from gradian.query.scorer import QueryGradients
from gradian.types import Example

Signal = Literal["contrastive", "target"]


@dataclass(frozen=True)
class QueryItem:
    """One eval item to explain.

    Attributes:
        example: the prompt and the expected answer.
        said: token ids that the tuned model generated, end of turn included; None without generation.
        wanted: token ids of the answer that was wanted, where the row itself does not hold it (under
            `not_contains` it holds markers, and the base model's answer is what was lost); else None.
    """

    example: Example
    said: tuple[int, ...] | None = None
    wanted: tuple[int, ...] | None = None


def resolve_signal(requested: Literal["auto", "contrastive", "target"], items: Sequence[QueryItem]) -> Signal:
    """Return what `evaluation.query_signal` means for these items.

    `auto` is contrastive when every item has generated text. `contrastive` without text has nothing to
    subtract and is the target query too; the report says so.
    """
    has_text = bool(items) and all(item.said for item in items)
    return "contrastive" if requested != "target" and has_text else "target"


def item_queries(
    collector: GradientCollector, encoder: ChatEncoder, items: Sequence[QueryItem], signal: Signal
) -> QueryGradients:
    """Return one query gradient per item.

    `target`: g_q = grad l(expected). `contrastive`: g_q = grad l(expected) - grad l(said), which cancels
    the direction that both answers share (their format) and leaves the content that differs. Without that,
    a substitution failure comes out with the wrong sign.

    Returns:
        m queries, in the order of `items`, with the examples' ids.
    """
    expected = [
        encoder.encode_continuation(item.example, item.wanted)
        if item.wanted
        else encoder.encode_answer(item.example)
        for item in items
    ]
    said = (
        [encoder.encode_continuation(item.example, item.said or ()) for item in items]
        if signal == "contrastive"
        else []
    )
    m = len(items)
    gradients = collector.gradients([*expected, *said])
    blocks = tuple(g[:m] - g[m:] if said else g for g in gradients)
    return QueryGradients(tuple(item.example.id for item in items), blocks)


def with_average(queries: QueryGradients, average: Sequence[torch.Tensor], name: str) -> QueryGradients:
    """Return the queries with one more in front: `average`, per block [d_l]."""
    blocks = tuple(
        torch.cat([mean.reshape(1, -1).to(rows), rows])
        for mean, rows in zip(average, queries.blocks, strict=True)
    )
    return QueryGradients((name, *queries.ids), blocks)
