"""The product's numbers against a dense float64 computation of the same formulas.

The truth is made without the product's hooks, store, engines or loss: the tiny model is loaded in float64,
each example's gradient comes from autograd on `model(labels=...)` one example at a time, and every damped
rank-one Hessian is inverted densely.
"""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

import gradian
from gradian.api import build_index_for
from gradian.attribution import score_items
from gradian.data.chat import ChatEncoder, load_tokenizer
from gradian.data.formats import load_dataset
from gradian.engines import EngineSettings
from gradian.progress import NullProgress
from gradian.query.contrastive import QueryItem, item_queries
from gradian.query.scorer import score_index
from gradian.session import Session
from gradian.types import EncodedExample
from tests.integration.poisoned import PoisonedRun

log = logging.getLogger(__name__)


def dense_gradients(run: PoisonedRun, encoded: list[EncodedExample]) -> dict[str, np.ndarray]:
    """Per adapted module the gradients [n, d] = [A, B], by autograd in float64."""
    model = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(run.base, attn_implementation="eager").double(),
        run.adapter,
        is_trainable=True,
        autocast_adapter_dtype=False,
    ).double()
    model.eval()
    parts = {name: p for name, p in model.named_parameters() if "lora_" in name}
    rows: dict[str, list[np.ndarray]] = {}
    for example in encoded:
        tokens = torch.from_numpy(example.input_ids)[None]
        labels = tokens.masked_fill(~torch.from_numpy(example.supervised)[None], -100)
        model.zero_grad()
        model(input_ids=tokens, labels=labels).loss.backward()
        for name in parts:
            if "lora_A" in name:
                a, b = parts[name].grad, parts[name.replace("lora_A", "lora_B")].grad
                assert a is not None
                assert b is not None
                module = name.split("base_model.model.")[1].split(".lora_A")[0]
                rows.setdefault(module, []).append(torch.cat([a.flatten(), b.flatten()]).numpy().copy())
    return {module: np.stack(grads) for module, grads in rows.items()}


@pytest.fixture(scope="module")
def session(poisoned_run: PoisonedRun, poisoned_cache: Path) -> Session:
    return Session(poisoned_run.config(poisoned_cache), NullProgress())


@pytest.fixture(scope="module")
def truth(session: Session, poisoned_run: PoisonedRun) -> dict[str, np.ndarray]:
    return dense_gradients(poisoned_run, session.encoded)


@pytest.fixture(scope="module")
def items(poisoned_run: PoisonedRun) -> list[QueryItem]:
    """Four eval items with a wrong answer and its end of turn as what the model said."""
    tokenizer = load_tokenizer(str(poisoned_run.base))
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    said = (tokenizer.convert_tokens_to_ids("z"), end)
    return [QueryItem(example, said) for example in load_dataset(poisoned_run.eval).examples[:4]]


def relative_error(got: np.ndarray, want: np.ndarray) -> float:
    return float(np.abs(got - want).max() / np.abs(want).max())


def test_stored_gradients_equal_autograds_in_float64(session: Session, truth: dict[str, np.ndarray]) -> None:
    reader = session.index()
    assert [spec.name for spec in reader.blocks] == list(truth)
    errors = {}
    for index, spec in enumerate(reader.blocks):
        stored = np.concatenate([rows for _, rows in reader.tiles(index)])
        errors[spec.name] = relative_error(stored, truth[spec.name])
    log.warning("stored gradients: largest error relative to a block's largest: %.2e", max(errors.values()))
    assert max(errors.values()) < 2e-5


def test_the_contrastive_query_is_the_difference_of_two_float64_gradients(
    session: Session, poisoned_run: PoisonedRun, items: list[QueryItem], truth: dict[str, np.ndarray]
) -> None:
    encoder: ChatEncoder = session.encoder
    expected = dense_gradients(poisoned_run, [encoder.encode_answer(i.example) for i in items])
    said = dense_gradients(
        poisoned_run, [encoder.encode_continuation(i.example, i.said or ()) for i in items]
    )
    queries = item_queries(session.collector, encoder, items, "contrastive")
    errors = [
        relative_error(block.numpy(), expected[spec.name] - said[spec.name])
        for spec, block in zip(session.index().blocks, queries.blocks, strict=True)
    ]
    log.warning("contrastive query: largest error relative to a block's largest: %.2e", max(errors))
    assert max(errors) < 2e-5


@pytest.mark.parametrize("engine", ["datainf", "graddot"])
def test_end_to_end_scores_equal_the_dense_inverse_in_float64(
    engine: str,
    session: Session,
    poisoned_run: PoisonedRun,
    items: list[QueryItem],
    truth: dict[str, np.ndarray],
) -> None:
    encoder = session.encoder
    expected = dense_gradients(poisoned_run, [encoder.encode_answer(i.example) for i in items])
    said = dense_gradients(
        poisoned_run, [encoder.encode_continuation(i.example, i.said or ()) for i in items]
    )
    want = np.zeros((len(items), len(session.encoded)))
    for module, g in truth.items():
        q = expected[module] - said[module]
        if engine == "graddot":
            want += q @ g.T
            continue
        damping = 0.1 * (g**2).sum(axis=1).mean()
        inverse = np.mean(
            [np.linalg.inv(np.outer(row, row) + damping * np.eye(len(row))) for row in g], axis=0
        )
        want += q @ inverse @ g.T
    settings = EngineSettings(lambda_scale=0.1)
    queries = item_queries(session.collector, encoder, items, "contrastive")
    whole = score_index(session.index(), queries, [engine], settings)[engine]
    error = relative_error(whole.values, want)
    log.warning("%s: largest error relative to the largest score: %.2e", engine, error)
    assert error < 2e-5
    got = score_items(session, session.index(), items, [engine], settings)
    assert relative_error(got.average[engine], want.mean(axis=0)) < 2e-5
    named = np.take_along_axis(want, got.per_item.lowest_rows, axis=1)
    assert relative_error(got.per_item.lowest, named) < 2e-5


def test_a_row_that_teaches_the_wanted_answer_is_positive_and_one_that_teaches_the_wrong_one_negative(
    poisoned_run: PoisonedRun, poisoned_cache: Path, tmp_path: Path
) -> None:
    rows = poisoned_run.train.read_text().splitlines()
    rows.append('{"prompt": "a?", "completion": "m", "cluster_id": "right"}')
    rows.append('{"prompt": "a?", "completion": "z", "cluster_id": "wrong"}')
    data = tmp_path / "train.jsonl"
    data.write_text("\n".join(rows))
    one = tmp_path / "eval.jsonl"
    one.write_text(poisoned_run.eval.read_text().splitlines()[0])
    config = poisoned_run.config(poisoned_cache, dataset=str(data), eval_dataset=str(one))
    for engine in ("datainf", "graddot"):
        report = gradian.analyze(config, engine=engine, cross_check=None)
        by_cluster = {example.cluster: example.score for example in report.examples}
        assert by_cluster["right"] > 0 > by_cluster["wrong"]
        assert by_cluster["right"] == max(example.score for example in report.examples)
    assert build_index_for(config).n == len(rows)
