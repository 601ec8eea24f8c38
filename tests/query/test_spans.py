from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from gradian.api import build_index_for
from gradian.config import Config
from gradian.config.schema import GradsConfig
from gradian.data.sentences import sentence_spans
from gradian.engines import EngineSettings
from gradian.errors import DataError, GradientError
from gradian.grads.collect import GradientCollector
from gradian.model.load import LoadedModel, load_model
from gradian.query.contrastive import QueryItem, item_queries
from gradian.query.scorer import score_index
from gradian.query.spans import (
    explain_example,
    query_direction,
    score_example_spans,
    span_scores,
    token_scores,
)
from gradian.types import Example, Message

ANSWER = "Paris is old. The capital is Berlin. Trains go there."
ROWS = [
    {"prompt": "Tell me.", "completion": ANSWER},
    {"prompt": "Capital?", "completion": "Rome."},
    {"prompt": "And now?", "completion": "Nothing. More."},
]


def example(row: dict[str, str], position: int = 0) -> Example:
    turns = Message("user", row["prompt"]), Message("assistant", row["completion"])
    return Example(f"row-{position}", position, "prompt_completion", turns)


@pytest.fixture(scope="module")
def loaded(tiny_model_dir: Path, tiny_adapter_dir: Path) -> LoadedModel:
    return load_model(Config(base_model=str(tiny_model_dir), adapter_path=str(tiny_adapter_dir)))


def item(loaded: LoadedModel) -> QueryItem:
    said = loaded.tokenizer("Berlin", add_special_tokens=False)["input_ids"]
    return QueryItem(example({"prompt": "Capital?", "completion": "Paris"}), said=tuple(said))


NORMALIZATIONS = [
    {},
    {"loss_reduction": "sum"},
    {"normalization": "l2"},
    {"loss_reduction": "sum", "normalization": "token_count"},
    {"projection_dim": 64},
]


@pytest.mark.parametrize("settings", NORMALIZATIONS)
def test_sentences_and_tokens_add_up_to_the_score_of_the_example_in_the_index(
    settings: dict[str, object],
    loaded: LoadedModel,
    tiny_model_dir: Path,
    tiny_adapter_dir: Path,
    tmp_path: Path,
) -> None:
    import json

    data = tmp_path / "train.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8")
    config = Config.model_validate(
        {
            "base_model": str(tiny_model_dir),
            "adapter_path": str(tiny_adapter_dir),
            "dataset": str(data),
            "cache_dir": str(tmp_path / "cache"),
            "grads": settings,
        }
    )
    reader = build_index_for(config)
    collector = GradientCollector(loaded, config.grads, config.seed)
    encoder = loaded.encoder(config.grads.max_seq_length)
    queries = item_queries(collector, encoder, [item(loaded)], "contrastive")
    indexed = score_index(reader, queries, ["datainf"], EngineSettings())["datainf"].values[0, 0]
    explained = explain_example(collector, encoder, example(ROWS[0]), item(loaded), store=reader)
    assert explained.engine == "datainf"
    size = np.abs(explained.scores).sum()
    assert abs(explained.score - indexed) <= 1e-4 * size
    assert explained.token_scores is not None
    assert abs(explained.token_scores.sum() - indexed) <= 1e-4 * size
    assert len(explained.token_scores) == explained.example.n_supervised
    # A sentence is the sum of its tokens.
    at = np.flatnonzero(explained.example.supervised)
    for span, score in zip(explained.spans, explained.scores, strict=True):
        inside = (at >= span.start) & (at < span.end)
        assert abs(explained.token_scores[inside].sum() - score) <= 1e-4 * size


def test_a_span_scores_what_autograd_says_of_its_tokens_alone(loaded: LoadedModel) -> None:
    collector = GradientCollector(loaded, GradsConfig(), 0)
    encoder = loaded.encoder(128)
    encoded = encoder.encode(example(ROWS[0]))
    spans = sentence_spans(encoder.tokenizer, encoded)
    queries = item_queries(collector, encoder, [item(loaded)], "contrastive")
    direction = query_direction(queries, collector.specs)
    found = span_scores(collector, encoded, spans, direction)[0]

    weights = [p for n, p in loaded.model.named_parameters() if "lora_" in n]
    by_name = {spec.name: block[0] for spec, block in zip(collector.specs, queries.blocks, strict=True)}
    ids = torch.from_numpy(encoded.input_ids)[None]
    for weight in weights:
        weight.requires_grad_(True)
    try:
        for span, score in zip(spans, found, strict=True):
            logits = loaded.model(input_ids=ids).logits[0, span.start - 1 : span.end - 1]
            loss = torch.nn.functional.cross_entropy(logits, ids[0, span.start : span.end], reduction="sum")
            grads = torch.autograd.grad(loss / encoded.n_supervised, weights)
            total = 0.0
            names = [n for n, _ in loaded.model.named_parameters() if "lora_" in n]
            for name, grad in zip(names, grads, strict=True):
                module = name.removeprefix("base_model.model.").split(".lora_")[0]
                part = by_name[module]
                half = part[: grad.numel()] if ".lora_A" in name else part[-grad.numel() :]
                total += float((half.double() * grad.flatten().double()).sum())
            assert abs(score - total) <= 1e-4 * np.abs(found).max()
    finally:
        for weight in weights:
            weight.requires_grad_(False)


def test_the_order_is_most_harmful_first(loaded: LoadedModel) -> None:
    collector = GradientCollector(loaded, GradsConfig(), 0)
    explained = explain_example(collector, loaded.encoder(128), example(ROWS[0]), item(loaded), tokens=False)
    assert explained.engine == "graddot"
    assert explained.token_scores is None
    ranked = explained.scores[list(explained.order)]
    assert (np.diff(ranked) >= 0).all()
    assert [span.text for span in explained.spans] == [
        "Paris is old. ",
        "The capital is Berlin. ",
        "Trains go there.",
        "<|im_end|>",
    ]


def test_several_queries_are_scored_like_each_alone(loaded: LoadedModel) -> None:
    collector = GradientCollector(loaded, GradsConfig(), 0)
    encoder = loaded.encoder(128)
    other = replace(item(loaded), example=example({"prompt": "Town?", "completion": "Lyon"}))
    queries = item_queries(collector, encoder, [item(loaded), other], "contrastive")
    direction = query_direction(queries, collector.specs)
    encoded = encoder.encode(example(ROWS[0]))
    spans = sentence_spans(encoder.tokenizer, encoded)
    both = span_scores(collector, encoded, spans, direction)
    for number, each in enumerate((item(loaded), other)):
        one = query_direction(item_queries(collector, encoder, [each], "contrastive"), collector.specs)
        np.testing.assert_allclose(both[number], span_scores(collector, encoded, spans, one)[0], rtol=1e-4)
        np.testing.assert_allclose(
            token_scores(collector, encoded, direction, number),
            token_scores(collector, encoded, one),
            rtol=1e-3,
            atol=1e-8,
        )


def test_curvature_without_an_index_is_refused(loaded: LoadedModel) -> None:
    collector = GradientCollector(loaded, GradsConfig(), 0)
    with pytest.raises(GradientError, match="no index of them was given"):
        explain_example(collector, loaded.encoder(128), example(ROWS[0]), item(loaded), engine="datainf")


def test_a_row_that_teaches_nothing_is_refused(loaded: LoadedModel) -> None:
    collector = GradientCollector(loaded, GradsConfig(), 0)
    encoder = loaded.encoder(8)
    queries = item_queries(collector, loaded.encoder(128), [item(loaded)], "contrastive")
    direction = query_direction(queries, collector.specs)
    with pytest.raises(DataError, match="no token of it is supervised"):
        score_example_spans(collector, encoder, example(ROWS[0]), direction)
