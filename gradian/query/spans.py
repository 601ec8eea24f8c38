"""Which sentence, and which token, of one training example did it.

The example's tokens stay as they are; only the part of them that is scored changes. With l_t the loss of supervised
token t and r the query after the engine's transform, a part S of the answer scores

    sum_{t in S} w <r, grad l_t>,

w being what the example's own loss and normalisation weigh a token with. So parts that cover the answer add up to
the example's score, with the sign of `gradian.query.scorer`: negative degraded the queried behaviour.

Sentences are scored by masked backward passes, all of an example in one batch; tokens by one forward-mode pass along
r (`gradian.grads.token_slopes`), which gives the same numbers.

One rule: take the query of ONE failing item. An average over items carries every other item's direction, and in a
long example that is about one of them it drowns the sentence that matters. `explain_example` builds that query;
`score_example_spans` takes any.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gradian.data.chat import ChatEncoder
from gradian.data.sentences import TokenSpan, sentence_spans
from gradian.engines import ENGINES, EngineSettings, GradientStore
from gradian.errors import DataError, GradientError
from gradian.grads.collect import GradientCollector
from gradian.query.contrastive import QueryItem, item_queries, resolve_signal
from gradian.query.scorer import QueryGradients, transform_queries
from gradian.types import BlockSpec, EncodedExample, Example, FloatArray


@dataclass(frozen=True, eq=False)
class Direction:
    """m queries after an engine's transform, over all blocks: a gradient g scores scale * <vectors, g>.

    Attributes:
        engine: whose transform it was.
        ids: what each query is about.
        vectors: per block float32 [m, d_l].
        scale: float64 [m]; what float32 might not hold stays outside of the product.
    """

    engine: str
    ids: tuple[str, ...]
    vectors: tuple[Tensor, ...]
    scale: FloatArray

    def only(self, query: int) -> Direction:
        """One of the queries by itself, in memory of its own."""
        return Direction(
            engine=self.engine,
            ids=(self.ids[query],),
            vectors=tuple(block[query : query + 1].clone() for block in self.vectors),
            scale=self.scale[query : query + 1],
        )


@dataclass(frozen=True, eq=False)
class Explanation:
    """What each part of one example's answer did to one query.

    Attributes:
        example: the example.
        query_id: what the query is about.
        engine: whose transform of the query.
        score: of the whole answer: the example's score, up to the rounding of stored gradients.
        spans: the parts, in the order of the text.
        scores: float64 [spans]; they add up to `score`.
        token_scores: float64 [supervised tokens], likewise; None when tokens were not scored.
    """

    example: EncodedExample
    query_id: str
    engine: str
    score: float
    spans: tuple[TokenSpan, ...]
    scores: FloatArray
    token_scores: FloatArray | None

    @property
    def order(self) -> tuple[int, ...]:
        """The spans by number, most harmful first."""
        return tuple(int(i) for i in np.argsort(self.scores, kind="stable"))


@dataclass(frozen=True)
class _NoRows:
    """A store of no examples, for engines that look at none to transform a query."""

    blocks: tuple[BlockSpec, ...]
    n: int = 0

    @property
    def sq_norms(self) -> FloatArray:
        return np.zeros((0, len(self.blocks)))

    def tiles(self, block: int, max_rows: int | None = None) -> Any:
        return iter(())

    def chunks(self) -> Any:
        return iter(())


def query_direction(
    queries: QueryGradients,
    blocks: Sequence[BlockSpec],
    *,
    store: GradientStore | None = None,
    engine: str | None = None,
    settings: EngineSettings | None = None,
) -> Direction:
    """Return the direction along which an engine scores gradients for each query.

    Args:
        queries: m query gradients.
        blocks: the blocks of the gradients, as stored.
        store: the index of the training data, which engines that correct for curvature need.
        engine: name from the registry; None takes `datainf` with a store and `graddot` without.
        settings: damping, learning rate and threads.

    Raises:
        UnknownNameError: no such engine.
        GradientError: the engine needs a store, or the queries are over other blocks.
    """
    name = engine or ("datainf" if store is not None else "graddot")
    if store is None and not ENGINES[name].curvature_free:
        raise GradientError(
            f"{name} corrects for the curvature of the training data, and no index of them was given",
            where="engine",
            fix="pass the index, or take graddot",
        )
    transformed = transform_queries(
        store or _NoRows(tuple(blocks)), queries, name, settings or EngineSettings()
    )
    sizes = torch.stack(
        [query.vectors.double().abs().amax(dim=1) * query.scale.abs() for query in transformed]
    )
    scale = sizes.amax(dim=0).clamp_min(torch.finfo(torch.float64).tiny)
    return Direction(
        engine=name,
        ids=queries.ids,
        vectors=tuple(
            (query.vectors.double() * (query.scale / scale)[:, None]).float() for query in transformed
        ),
        scale=scale.numpy(),
    )


def span_scores(
    collector: GradientCollector, encoded: EncodedExample, spans: Sequence[TokenSpan], direction: Direction
) -> FloatArray:
    """Score parts of an example's answer by masked backward passes.

    Args:
        collector: the model's gradients.
        encoded: the example.
        spans: parts of its supervised tokens; they may overlap.
        direction: m queries.

    Returns:
        float64 [m, spans].
    """
    masked = [replace(encoded, supervised=_only(encoded, span)) for span in spans]
    dots = collector.dots(masked, direction.vectors)
    weights = np.array([_mean_weight(collector, row.n_supervised, encoded.n_supervised) for row in masked])
    scores: FloatArray = (dots * weights[:, None]).T * direction.scale[:, None]
    return scores * collector.stored_scale(encoded)


def token_scores(
    collector: GradientCollector, encoded: EncodedExample, direction: Direction, query: int = 0
) -> FloatArray:
    """Score every supervised token at once by one forward-mode pass; float64 [supervised tokens].

    Raises:
        GradientError: a part of the model has no forward-mode derivative.
    """
    slopes = collector.slopes(encoded, [block[query] for block in direction.vectors])
    weight = _mean_weight(collector, 1, encoded.n_supervised) * collector.stored_scale(encoded)
    scores: FloatArray = slopes * (weight * direction.scale[query])
    return scores


def encode_taught(encoder: ChatEncoder, example: Example) -> EncodedExample:
    """Return a training example as tokens, some of which are supervised.

    Raises:
        RowError: the example cannot be encoded.
        DataError: nothing in it is supervised.
    """
    encoded = encoder.encode(example)
    if not encoded.n_supervised:
        raise DataError(
            "the example teaches nothing: no token of it is supervised",
            where=f"example {example.id} (row {example.position + 1})",
            fix="raise grads.max_seq_length if its answer was cut off",
        )
    return encoded


def score_example_spans(
    collector: GradientCollector,
    encoder: ChatEncoder,
    example: Example,
    direction: Direction,
    *,
    tokens: bool = True,
) -> Explanation:
    """Score the sentences of one training example on a query of the caller's choice, the first of `direction`.

    The caller owns the rule of this module: one failing item a query.

    Args:
        collector: the model's gradients.
        encoder: as the example was indexed with.
        example: the training example.
        direction: the query; see `query_direction`.
        tokens: score single tokens too.

    Raises:
        RowError: the example cannot be encoded.
        DataError: nothing in it is supervised.
        GradientError: a part of the model has no forward-mode derivative.
    """
    encoded = encode_taught(encoder, example)
    spans = sentence_spans(encoder.tokenizer, encoded)
    scores = span_scores(collector, encoded, spans, direction)[0]
    return Explanation(
        example=encoded,
        query_id=direction.ids[0],
        engine=direction.engine,
        score=float(scores.sum()),
        spans=spans,
        scores=scores,
        token_scores=token_scores(collector, encoded, direction) if tokens else None,
    )


def explain_example(
    collector: GradientCollector,
    encoder: ChatEncoder,
    example: Example,
    item: QueryItem,
    *,
    store: GradientStore | None = None,
    engine: str | None = None,
    settings: EngineSettings | None = None,
    signal: Literal["auto", "contrastive", "target"] = "auto",
    tokens: bool = True,
) -> Explanation:
    """Rank the sentences of one training example by what they did to one eval item.

    The query is the item's own: expected answer against what the tuned model said, where `item.said` is there.

    Args:
        collector: the model's gradients.
        encoder: as the example was indexed with.
        example: the training example.
        item: the failing eval item.
        store: the index, for engines that correct for curvature.
        engine: name from the registry; None takes `datainf` with a store and `graddot` without.
        settings: damping, learning rate and threads.
        signal: see `evaluation.query_signal`.
        tokens: score single tokens too.

    Raises:
        RowError, DataError: the example or the item cannot be used.
        GradientError: as `query_direction`; or a part of the model has no forward-mode derivative.
    """
    queries = item_queries(collector, encoder, [item], resolve_signal(signal, [item]))
    direction = query_direction(queries, collector.specs, store=store, engine=engine, settings=settings)
    return score_example_spans(collector, encoder, example, direction, tokens=tokens)


def _only(encoded: EncodedExample, span: TokenSpan) -> npt.NDArray[np.bool_]:
    mask = np.zeros_like(encoded.supervised)
    mask[span.start : span.end] = encoded.supervised[span.start : span.end]
    return mask


def _mean_weight(collector: GradientCollector, part: int, whole: int) -> float:
    # Under `mean` the loss of a part is a mean over the part, and a token of it weighs more than in the whole.
    return part / whole if collector.grads.loss_reduction == "mean" else 1.0
