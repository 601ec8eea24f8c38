"""Eval items that are in the training data.

What it detects
    Eval items in three kinds: question and answer are both in a training row, at any turn of it; the question
    is, with another answer; or the item's word triples overlap with a training row's at a Jaccard similarity
    of 0.85 (MinHash, as in `data.near_duplicates`). Case, white space and closing punctuation are passed
    over, and so are system turns. An item that is similar to more than 20 training rows shares a template
    with them and is not counted.

Why it matters
    An eval set that was trained on measures recall. The capability can only seem to improve, and every
    verdict on it falls. From 10% of the items it is critical (recorded: 64 of 64), from 1% high, else medium;
    items that are merely similar raise it no further than high. A question with another answer is
    contamination too: the model was taught that the wanted answer is wrong, so a regression there was
    trained, not lost.

What to do
    Remove the named training rows, or take other eval items. Make the split before duplicating or
    paraphrasing rows.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gradian.checks.audit import Audit
from gradian.checks.near_duplicates import matches, sketch
from gradian.checks.registry import Need, check
from gradian.checks.row_findings import LISTED, by_share, counted, ids_at, row_list
from gradian.checks.turn_keys import KeyArray, TurnKeys, row_text, turn_keys
from gradian.types import Finding, Severity

ID = "data.train_eval_contamination"
_PAIRING = np.uint64(0x9E3779B97F4A7C15)


@check(ID, "Eval items that also appear in training", needs=(Need.DATASET, Need.EVAL_DATASET))
def train_eval_contamination(audit: Audit) -> Iterator[Finding]:
    """Look the eval items up among the training rows, exactly and by similarity."""
    limits = audit.limits.data
    items = tuple(audit.eval_dataset.examples) if audit.eval_dataset else ()
    total = len(items)
    asked, trained = turn_keys(items), audit.turn_keys
    wanted = asked.final
    same = np.zeros(total, dtype=np.bool_)
    same[asked.row[wanted & np.isin(_pairs(asked), _pairs(trained)) & (asked.answer != 0)]] = True
    prompt = np.zeros(total, dtype=np.bool_)
    prompt[asked.row[wanted & np.isin(asked.prompt, trained.prompt) & (asked.prompt != 0)]] = True
    prompt &= ~same
    found = matches(sketch(row_text(item) for item in items), audit.sketches, limits.contamination_similarity)
    similar = (found.index >= 0) & ~same & ~prompt
    templated = similar & (found.crowd > limits.template_rows)
    near = similar & ~templated
    counts = {"same": int(same.sum()), "other_answer": int(prompt.sum()), "near": int(near.sum())}
    named = np.flatnonzero(same | prompt | near)
    figures = {**counts, "eval_rows": (named[:LISTED] + 1).tolist(), "templated": int(templated.sum())}
    if not len(named):
        if templated.any():
            yield _shared_template(int(templated.sum()), total, figures)
        return
    leaking = np.unique(
        np.concatenate(
            [
                trained.row[np.isin(_pairs(trained), _pairs(asked)[same[asked.row] & wanted])],
                trained.row[np.isin(trained.prompt, asked.prompt[prompt[asked.row] & wanted])],
                found.index[near],
            ]
        )
    )
    exact = (counts["same"] + counts["other_answer"]) / total
    share = len(named) / total
    severity = by_share(
        share,
        (limits.contamination_share_critical, Severity.CRITICAL),
        (limits.contamination_share_high, Severity.HIGH),
        otherwise=Severity.MEDIUM,
    )
    if severity is Severity.CRITICAL and exact < limits.contamination_share_critical:
        severity = Severity.HIGH
    kinds = (
        (counts["same"], "with the same answer"),
        (counts["other_answer"], "with another answer"),
        (counts["near"], "nearly word for word"),
    )
    told = ", ".join(f"{count} {kind}" for count, kind in kinds if count)
    yield Finding(
        ID,
        severity,
        f"{len(named)} of {total} eval items ({share:.1%}) are in the training data ({told})",
        f"Eval {row_list(named)}; training {row_list(leaking)}. A score on them measures recall, or, where the answer"
        " differs, what the rows taught instead.",
        f"Remove {counted(len(leaking), 'training row')} (listed), or replace these eval items.",
        ids_at(audit.examples, leaking),
        {"count": len(named), "rows": (leaking[:LISTED] + 1).tolist(), "share": share, **figures},
    )


def _pairs(keys: TurnKeys) -> KeyArray:
    return np.asarray(keys.prompt * _PAIRING + keys.answer, dtype=np.uint64)


def _shared_template(n: int, total: int, figures: dict[str, object]) -> Finding:
    return Finding(
        ID,
        Severity.INFO,
        f"{n} of {total} eval items resemble many training rows each, so similarity cannot tell whether they leak",
        "They share a long template with the training data. None is there with the same question.",
        "Nothing to change; check by hand that the parts that vary do not recur.",
        figures={"count": n, "rows": [], "share": n / total, **figures},
    )
