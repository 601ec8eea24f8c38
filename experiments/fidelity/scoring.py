"""What each engine and each baseline says about every training row and every question, kept beside the bank.

Scores come from Gradian itself: the index of the adapter that was trained on all rows, and `score_index`.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors import safe_open
from safetensors.numpy import save

from experiments.fidelity.dataset import BenchData, question_example
from experiments.projection_fidelity import project_queries, stored_bytes, variants, write_variant
from gradian.data.chat import ChatEncoder
from gradian.data.collate import length_batches, pad_batch
from gradian.engines import EngineSettings
from gradian.errors import GradianError
from gradian.grads.loss import TokenBatch, pad_token
from gradian.model.load import LoadedModel
from gradian.query.contrastive import QueryItem, item_queries
from gradian.query.scorer import QueryGradients, gradient_norms, score_index, unit_norm_scale
from gradian.session import Session
from gradian.store.durable import replace_file
from gradian.store.reader import IndexReader
from gradian.types import EncodedExample, FloatArray

SCORES = "scores.safetensors"
ENGINES = ("datainf", "graddot", "tracin")
DEFAULT_LAMBDA = 0.1
LAMBDAS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
WIDTHS = (128, 512, 2048, 8192)
_READ_ROWS = 8
_BM25_K1, _BM25_B = 1.5, 0.75
_WORD = re.compile(r"\w+")


@dataclass(frozen=True, eq=False)
class ScoreTables:
    """The scores.

    Attributes:
        tables: by name, float32 [queries, n]; queries are the questions in order, then the questions with a wrong
            answer once more, as the difference of the two answers.
        norms: float32 [n]; the gradient norm of each row.
        query_norms: float32 [queries]; the norm of each query.
        made_from: the inputs of the index, and the bytes of each variant of the store; JSON values.
    """

    tables: Mapping[str, npt.NDArray[np.float32]]
    norms: npt.NDArray[np.float32]
    query_norms: npt.NDArray[np.float32]
    made_from: Mapping[str, Any]


def datainf_table(scale: float) -> str:
    """Return the name of DataInf's table at a damping."""
    return f"datainf/{scale:g}"


def variant_table(engine: str, name: str) -> str:
    """Return the name of an engine's table over another store."""
    return f"{engine}@{name}"


def query_items(data: BenchData, encoder: ChatEncoder) -> tuple[list[QueryItem], list[QueryItem]]:
    """Return the questions as Gradian's query items: all of them, and those with a wrong answer that was said."""
    plain = [
        QueryItem(question_example(question, question.expected, i))
        for i, question in enumerate(data.questions)
    ]
    said = []
    for i, question in enumerate(data.questions):
        if question.marker is not None:
            wrong = encoder.encode_answer(question_example(question, question.marker, i))
            tokens = tuple(int(token) for token in wrong.input_ids[wrong.supervised])
            said.append(QueryItem(plain[i].example, said=tokens))
    return plain, said


def score_adapter(session: Session, data: BenchData, learning_rate: float, work: Path) -> ScoreTables:
    """Score the session's adapter with every engine, damping and store, and the representations of its model.

    Args:
        session: the run whose adapter was trained on all rows.
        data: the rows and the questions.
        learning_rate: TracIn's weight of the one checkpoint.
        work: folder for stores under other settings.
    """
    reader = session.index()
    plain, said = query_items(data, session.encoder)
    target = item_queries(session.collector, session.encoder, plain, "target")
    contrast = item_queries(session.collector, session.encoder, said, "contrastive")
    queries = QueryGradients(
        (*target.ids, *contrast.ids),
        tuple(torch.cat(pair) for pair in zip(target.blocks, contrast.blocks, strict=True)),
    )
    tables: dict[str, npt.NDArray[np.float32]] = {}
    for scale in LAMBDAS:
        tables[datainf_table(scale)] = _scored(reader, queries, "datainf", EngineSettings(scale))
    for engine in ("graddot", "tracin"):
        settings = EngineSettings(DEFAULT_LAMBDA, learning_rate=learning_rate)
        tables[engine] = _scored(reader, queries, engine, settings)
    sizes = {"exact": stored_bytes(reader)}
    for grads in variants(WIDTHS)[1:]:
        name = (
            f"{grads.projection_kind}-{grads.projection_dim}" if grads.projection_dim else grads.storage_dtype
        )
        index = write_variant(reader, grads, work)
        sizes[name] = stored_bytes(index)
        projected = project_queries(queries, reader.blocks, grads)
        for engine in ("datainf", "graddot"):
            tables[variant_table(engine, name)] = _scored(
                index, projected, engine, EngineSettings(DEFAULT_LAMBDA)
            )
    answers = [item.example for item in plain]
    answers += [
        question_example(q, q.marker, i) for i, q in enumerate(data.questions) if q.marker is not None
    ]
    similar = representation_similarity(
        session.loaded, session.encoded, [session.encoder.encode_answer(example) for example in answers]
    )
    tables["representation"] = with_contrasts(similar, data).astype(np.float32)
    return ScoreTables(
        tables,
        gradient_norms(reader).astype(np.float32),
        (1.0 / unit_norm_scale(queries)).numpy().astype(np.float32),
        {"index": reader.id, "inputs": session.inputs, "bytes": sizes, "learning_rate": learning_rate},
    )


def _scored(
    index: IndexReader, queries: QueryGradients, engine: str, settings: EngineSettings
) -> npt.NDArray[np.float32]:
    return score_index(index, queries, [engine], settings)[engine].values.astype(np.float32)


def with_contrasts(by_answer: npt.NDArray[Any], data: BenchData) -> npt.NDArray[Any]:
    """Return figures of answers as figures of queries: the right answers', then right less wrong where there is one.

    Args:
        by_answer: [answers, ...]; the questions with their right answers, then those with a wrong one with that.
        data: the questions.
    """
    right = by_answer[: len(data.questions)]
    return np.concatenate([right, right[list(data.marked)] - by_answer[len(data.questions) :]])


def representation_similarity(
    loaded: LoadedModel, rows: Sequence[EncodedExample], questions: Sequence[EncodedExample]
) -> npt.NDArray[np.float32]:
    """Return the cosine of the mean last hidden states of each question and each row, float32 [questions, n]."""
    means = mean_hidden_states(loaded, [*questions, *rows])
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    similar: npt.NDArray[np.float32] = (means[: len(questions)] @ means[len(questions) :].T).astype(
        np.float32
    )
    return similar


def mean_hidden_states(loaded: LoadedModel, rows: Sequence[EncodedExample]) -> FloatArray:
    """Return the mean over a row's tokens of the last hidden states, float64 [rows, h]."""
    found: list[FloatArray] = [np.zeros(0)] * len(rows)
    for indices in length_batches([len(row) for row in rows], _READ_ROWS):
        chosen = [rows[int(i)] for i in indices]
        batch = TokenBatch.from_padded(pad_batch(chosen, pad_token(loaded.tokenizer)), loaded.device)
        with torch.no_grad():
            hidden = loaded.model.get_base_model().model(
                input_ids=batch.input_ids,
                attention_mask=batch.attention_mask,
                position_ids=batch.position_ids,
                use_cache=False,
            )[0]
        for i, row, states in zip(indices, chosen, hidden, strict=True):
            found[int(i)] = states[: len(row)].double().mean(dim=0).numpy()
    return np.stack(found)


def bm25(queries: Sequence[str], documents: Sequence[str]) -> FloatArray:
    """Return the BM25 score of each document for each query, float64 [queries, documents].

    Robertson and Zaragoza, "The Probabilistic Relevance Framework: BM25 and Beyond" (2009), with the inverse
    document frequency that cannot be negative, ln(1 + (N - df + .5) / (df + .5)); k1 = 1.5, b = .75.
    """
    counts = [Counter(_words(text)) for text in documents]
    lengths = np.array([sum(count.values()) for count in counts], dtype=np.float64)
    found_in = Counter(word for count in counts for word in count)
    n = len(documents)
    scores = np.zeros((len(queries), n))
    for i, query in enumerate(queries):
        for word in _words(query):
            rare = math.log(1 + (n - found_in[word] + 0.5) / (found_in[word] + 0.5))
            often = np.array([count[word] for count in counts], dtype=np.float64)
            scores[i] += (
                rare
                * often
                * (_BM25_K1 + 1)
                / (often + _BM25_K1 * (1 - _BM25_B + _BM25_B * lengths / lengths.mean()))
            )
    return scores


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def write_scores(folder: Path, scores: ScoreTables) -> None:
    """Write the scores beside the bank."""
    tensors = {**scores.tables, "norms": scores.norms, "query_norms": scores.query_norms}
    metadata = {"made_from": json.dumps(scores.made_from, sort_keys=True)}
    replace_file(
        folder / SCORES, save({name: np.ascontiguousarray(t) for name, t in tensors.items()}, metadata)
    )


def read_scores(folder: Path) -> ScoreTables:
    """Read the scores beside a bank.

    Raises:
        GradianError: there are none.
    """
    path = folder / SCORES
    try:
        with safe_open(path, framework="numpy") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
            made_from = json.loads(file.metadata()["made_from"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise GradianError(
            "the scores cannot be read",
            where=str(path),
            found=str(error),
            fix="run python -m experiments.fidelity.make_bank",
        ) from None
    norms, query_norms = tensors.pop("norms"), tensors.pop("query_norms")
    return ScoreTables(tensors, norms, query_norms, made_from)
