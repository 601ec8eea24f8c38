"""Hashes of what is asked and what is answered, so that rows are compared without comparing texts.

Texts count as the same when they differ only in case, white space, Unicode form or closing punctuation.
"""

from __future__ import annotations

import json
import unicodedata
from array import array
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import xxhash

from gradian.types import BoolArray, Example, IntArray, Message

KeyArray = npt.NDArray[np.uint64]

_INSTRUCTING = ("system", "developer")


@dataclass(frozen=True, eq=False)
class TurnKeys:
    """One entry an answer: every assistant turn, or the whole of a raw text; m entries.

    Attributes:
        row: 0-based row that the answer is in, int64 [m].
        context: hash of everything before the answer, system turn and tools included; 0 for nothing, [m].
        prompt: the same without system turn and tools, [m].
        answer: hash of the answer with its tool calls; 0 when it says nothing, [m].
        final: whether no later answer is in the row, bool [m].
    """

    row: IntArray
    context: KeyArray
    prompt: KeyArray
    answer: KeyArray
    final: BoolArray


def normalised(text: str) -> str:
    """The text in lower case and NFKC form, white space runs one space, without closing `.`, `!` and `?`."""
    plain = " ".join(unicodedata.normalize("NFKC", text).casefold().split())
    return plain.rstrip(".!? ") or plain


def answer_text(turn: Message) -> str:
    """The turn's text and its tool calls."""
    calls = (turn.extra or {}).get("tool_calls")
    if not calls:
        return turn.content
    return f"{turn.content}\n{json.dumps(calls, sort_keys=True, ensure_ascii=False, default=str)}"


def row_text(example: Example) -> str:
    """What a row says: its turns without system turns, which whole datasets have in common, or its raw text."""
    if not example.messages:
        return example.text or ""
    return "\n".join(answer_text(turn) for turn in example.messages if turn.role not in _INSTRUCTING)


def turn_keys(examples: Iterable[Example]) -> TurnKeys:
    """Hash the answers of the rows and what comes before them. Rows that cannot be used have no entry."""
    rows, context, prompt, answer, final = array("q"), array("Q"), array("Q"), array("Q"), array("b")
    for i, example in enumerate(examples):
        if not example.messages:
            if example.text is not None:
                rows.append(i)
                context.append(0)
                prompt.append(0)
                answer.append(_hash(normalised(example.text)))
                final.append(1)
            continue
        whole, asked = xxhash.xxh3_64(), xxhash.xxh3_64()
        begun_whole = begun_asked = False
        last = None
        if example.tools:
            whole.update(json.dumps(example.tools, sort_keys=True, default=str).encode("utf-8"))
        for turn in example.messages:
            said = normalised(answer_text(turn))
            if turn.role == "assistant":
                last = len(rows)
                rows.append(i)
                context.append(whole.intdigest() if begun_whole else 0)
                prompt.append(asked.intdigest() if begun_asked else 0)
                answer.append(_hash(said))
                final.append(0)
            piece = f"{turn.role}\x1f{said}\x1e".encode("utf-8", "surrogatepass")
            whole.update(piece)
            begun_whole = begun_whole or bool(said)
            if turn.role not in _INSTRUCTING:
                asked.update(piece)
                begun_asked = begun_asked or bool(said)
        if last is not None:
            final[last] = 1
    return TurnKeys(
        np.array(rows, dtype=np.int64),
        np.array(context, dtype=np.uint64),
        np.array(prompt, dtype=np.uint64),
        np.array(answer, dtype=np.uint64),
        np.array(final, dtype=np.bool_),
    )


def _hash(text: str) -> int:
    return xxhash.xxh3_64_intdigest(text.encode("utf-8", "surrogatepass")) if text else 0
