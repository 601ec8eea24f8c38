"""From a run and one training row to the sentence in it that did the damage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from gradian.attribution import engine_settings, measure, regressed_items
from gradian.config import Config
from gradian.config.required import required
from gradian.data.formats import load_dataset
from gradian.data.sentences import token_pieces
from gradian.engines import ENGINES, EngineSettings
from gradian.errors import DataError
from gradian.evaluation.capability import ItemResult
from gradian.progress import Progress
from gradian.query.contrastive import QueryItem, item_queries, resolve_signal
from gradian.query.scorer import QueryGradients
from gradian.query.spans import (
    Direction,
    Explanation,
    encode_taught,
    query_direction,
    score_example_spans,
)
from gradian.report.explanation import ExplainedExample, ExplainedSpan, ExplainedToken
from gradian.runs.read import read_run_folder
from gradian.session import Session
from gradian.types import EncodedExample, Example

if TYPE_CHECKING:
    from gradian.store.reader import IndexReader

# Query gradients held in memory at a time while the item is looked for.
_ITEMS_AT_ONCE = 16


def explain_run(
    config: Config,
    *,
    example: str,
    item: str | None,
    engine: str | None,
    tokens: bool,
    progress: Progress,
) -> ExplainedExample:
    """Explain one training row of a run; see `gradian.api.explain`."""
    name = engine or config.engine.name
    entry = ENGINES[name]
    eval_set = load_dataset(
        required(
            config.eval_dataset,
            "eval_dataset",
            "--eval-dataset",
            "there is no eval item to explain the row by",
        )
    )
    session = Session(config, progress)
    row = _find(session.dataset.examples, example, "--example", str(session.dataset.path))
    # Before anything is measured: a row that teaches nothing has nothing to explain.
    encoded = encode_taught(session.encoder, row)
    asked: Sequence[Example] = eval_set.examples
    if item is not None:
        asked = [_find(eval_set.examples, item, "--item", str(eval_set.path))]
    measured = measure(session, asked, "the item")
    items = regressed_items(measured, asked)
    store = None if entry.curvature_free else session.index()
    run = read_run_folder(config.run_dir) if config.run_dir and name == "tracin" else None
    settings = engine_settings(config, run, [name])
    number, direction, signal = _worst_item(session, store, name, settings, items, encoded)
    explanation = score_example_spans(session.collector, session.encoder, row, direction, tokens=tokens)
    return _explained(session, row, measured.items[number], explanation, signal)


def _find(examples: Sequence[Example], wanted: str, flag: str, where: str) -> Example:
    """Return the example of an id, or of the beginning of one."""
    found = [example for example in examples if example.id == wanted] or [
        example for example in examples if wanted and example.id.startswith(wanted)
    ]
    if len(found) == 1:
        return found[0]
    raise DataError(
        "no row has this id" if not found else f"{len(found)} rows have an id that begins like this",
        where=f"{flag} {wanted} in {where}",
        expected="an id as report.json and report.md give it, such as "
        + ", ".join(example.id for example in (found or examples)[:3]),
    )


def _worst_item(
    session: Session,
    store: IndexReader | None,
    engine: str,
    settings: EngineSettings,
    items: Sequence[tuple[int, QueryItem]],
    encoded: EncodedExample,
) -> tuple[int, Direction, str]:
    """Return the item that the row scores lowest on, with its direction and what its query was made of."""
    signal = resolve_signal(session.config.evaluation.query_signal, [item for _, item in items])
    best: tuple[float, int, Direction] | None = None
    groups = [items[start : start + _ITEMS_AT_ONCE] for start in range(0, len(items), _ITEMS_AT_ONCE)]
    with session.progress.task("Query gradients", len(items)) as advance:
        for group in groups:
            queries: QueryGradients = item_queries(
                session.collector, session.encoder, [item for _, item in group], signal
            )
            direction = query_direction(
                queries, session.collector.specs, store=store, engine=engine, settings=settings
            )
            scores = session.collector.dots([encoded], direction.vectors)[0] * direction.scale
            lowest = int(np.argmin(scores))
            if best is None or scores[lowest] < best[0]:
                best = (float(scores[lowest]), group[lowest][0], direction.only(lowest))
            advance(len(group))
    assert best is not None
    return best[1], best[2], signal


def _explained(
    session: Session, row: Example, item: ItemResult, explanation: Explanation, signal: str
) -> ExplainedExample:
    encoded = explanation.example
    pieces = token_pieces(session.encoder.tokenizer, encoded.input_ids.tolist())
    supervised = np.flatnonzero(encoded.supervised)
    scores = explanation.token_scores
    return ExplainedExample(
        id=row.id,
        row=row.position,
        prompt=row.prompt,
        item=item.example_id,
        item_prompt=item.prompt,
        expected=item.expected,
        said=item.tuned_text,
        regressed=item.regressed,
        engine=explanation.engine,
        query_signal=signal,
        score=explanation.score,
        spans=tuple(
            ExplainedSpan(
                number=i + 1,
                text=explanation.spans[i].text,
                tokens=explanation.spans[i].end - explanation.spans[i].start,
                score=explanation.scores[i],
            )
            for i in explanation.order
        ),
        tokens=()
        if scores is None
        else tuple(
            ExplainedToken(text=pieces[position], score=score)
            for position, score in zip(supervised.tolist(), scores.tolist(), strict=True)
        ),
    )
