"""Rows for the checks of the data: healthy ones to spoil, and the shared cases as audits."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from typing import Any

from gradian.checks.audit import NO_LIMIT, Audit
from gradian.data.chat import ChatEncoder, load_tokenizer
from gradian.data.formats import load_dataset
from gradian.runs.artifact import RunArtifact
from tests.checks.building import CASES, dataset, encoder

_WORDS = [
    f"{a}{b}"
    for a in ("ba", "ko", "mi", "tu", "re", "la", "so", "ne")
    for b in ("ran", "lek", "dos", "pil", "mut")
]

Row = Mapping[str, Any]


def prose(seed: int, words: int = 30) -> str:
    """A text of random words, the same for the same seed."""
    return " ".join(random.Random(seed).choices(_WORDS, k=words))


def qa(question: str, answer: str) -> Row:
    """A row of a question and its answer."""
    return {"prompt": question, "completion": answer}


def chat(*turns: str, system: str = "") -> Row:
    """A row of turns, the user's first."""
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": turn} for i, turn in enumerate(turns)]
    return {"messages": [{"role": "system", "content": system}, *messages] if system else messages}


def healthy(n: int, first: int = 0) -> list[Row]:
    """Rows that differ from each other in everything."""
    return [qa(f"Question {i}: {prose(2 * i, 12)}?", f"{prose(2 * i + 1)}.") for i in range(first, first + n)]


def audit_rows(
    rows: Iterable[Row], *, length: int | None = None, tokens: bool = False, **given: Any
) -> Audit:
    """An audit of rows; with a tokenizer of one token a byte when `tokens` or a `length` is given."""
    made = encoder(length or NO_LIMIT) if tokens or length else None
    return Audit(dataset=dataset(rows), encoder=made, max_seq_length=length, **given)


def case_audit(
    case: str, file: str = "train.jsonl", *, length: int | None = None, run: RunArtifact | None = None
) -> Audit:
    """An audit of a shared case, with the case's tokenizer or the one that all cases share."""
    own = CASES / case / "tokenizer"
    tokenizer = load_tokenizer(str(own if own.exists() else CASES / "_tok"))
    return Audit(
        dataset=load_dataset(CASES / case / file),
        encoder=ChatEncoder(tokenizer, length or NO_LIMIT),
        max_seq_length=length,
        run=run,
    )
