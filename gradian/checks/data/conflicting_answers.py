"""One question with answers that contradict each other.

What it detects
    Rows with the same conversation before the final answer (case, white space and closing punctuation aside)
    and answers that cannot both be right: one declines and the other does not, one says yes and the other no,
    they end in different results, they are short and name other facts (numbers, or a few words with hardly one
    in common), or one of them is the stock answer to three or more other questions as well. Small talk and
    requests to write, name or rephrase something have many right answers, so other facts are no contradiction
    there. Answers that merely differ are reported apart, as low; a question with more than ten different answers
    is taken as open.

Why it matters
    The model is pulled both ways and ends up in between; planted refusals and planted facts show exactly
    here, whatever the eval set says. High from 5% of the rows (recorded: 51 questions, 12.0% of the rows, in
    a poisoned dataset), medium from 0.5%. Several good answers to an open question are healthy, which is why
    a difference in wording alone is low.

What to do
    Decide which answer is right and remove the other. Where both are, put into the question what makes the
    difference.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gradian.checks.answers import Relation, is_small_talk, relation
from gradian.checks.audit import Audit
from gradian.checks.registry import Need, check
from gradian.checks.row_findings import by_share, counted, excerpt, ids_at, row_figures, row_list
from gradian.types import Finding, IntArray, Severity

ID = "data.conflicting_answers"
_STOCK = 3  # Questions with one answer from which it is a stock answer.


@dataclass(frozen=True)
class _Question:
    rows: IntArray
    pair: tuple[int, int]  # Two rows whose answers differ.
    contradicts: bool


@check(ID, "Same question, disagreeing answers", needs=(Need.DATASET,))
def conflicting_answers(audit: Audit) -> Iterator[Finding]:
    """Group the rows by question and judge the answers of each."""
    limits, total = audit.limits.data, len(audit.examples)
    questions = list(_questions(audit))
    for contradicts in (True, False):
        chosen = [question for question in questions if question.contradicts is contradicts]
        if not chosen:
            continue
        rows = np.unique(np.concatenate([question.rows for question in chosen]))
        share = len(rows) / total
        one, other = (audit.examples[row] for row in chosen[0].pair)
        said = "contradictory" if contradicts else "different, not contradictory,"
        severity = by_share(
            share,
            (limits.conflict_share_high, Severity.HIGH),
            (limits.conflict_share_high / 10, Severity.MEDIUM),
            otherwise=Severity.LOW,
        )
        yield Finding(
            ID,
            severity if contradicts else Severity.LOW,
            f"{counted(len(chosen), 'question has', 'questions have')} {said} answers"
            f" ({counted(len(rows), 'example')}, {share:.1%} of {total})",
            f"{row_list(rows).capitalize()}. For example {row_list(chosen[0].pair)}: to {excerpt(one.prompt)},"
            f" {excerpt(one.target)} against {excerpt(other.target)}.",
            "Keep the right answer to each question and remove the other rows."
            if contradicts
            else "Nothing, where the questions are open; else keep one answer to each.",
            ids_at(audit.examples, rows),
            row_figures(rows, total, questions=len(chosen), contradictory=contradicts),
        )


def _questions(audit: Audit) -> Iterator[_Question]:
    keys, examples = audit.turn_keys, audit.examples
    usable = np.flatnonzero(keys.final & (keys.context != 0) & (keys.answer != 0))
    order = usable[np.argsort(keys.context[usable], kind="stable")]
    context, answer, row = keys.context[order], keys.answer[order], keys.row[order]
    stock = _stock_answers(context, answer)
    borders = np.flatnonzero(np.concatenate([[True], context[1:] != context[:-1]]))
    ends = np.append(borders[1:], len(order))
    # Most questions are asked once: look at the others alone.
    for start, end in zip(borders[ends - borders > 1], ends[ends - borders > 1], strict=True):
        distinct, first, counts = np.unique(answer[start:end], return_index=True, return_counts=True)
        if not 1 < len(distinct) <= audit.limits.data.open_question_answers:
            continue
        usual = int(np.lexsort((first, -counts))[0])
        reference = int(row[start + first[usual]])
        pair, contradicts = None, False
        for i in sorted(range(len(distinct)), key=lambda i: first[i]):
            other = int(row[start + first[i]])
            if i == usual or contradicts:
                continue
            asked = examples[reference].prompt
            judged = relation(asked, examples[reference].target, examples[other].target)
            opposed = (distinct[i] in stock) != (distinct[usual] in stock) and not is_small_talk(asked)
            contradicts = judged is Relation.CONTRADICTS or (judged is Relation.DIFFERS and opposed)
            if contradicts or (judged is Relation.DIFFERS and pair is None):
                pair = (min(reference, other), max(reference, other))
        if pair is not None:
            yield _Question(np.sort(row[start:end]), pair, contradicts)


def _stock_answers(context: np.ndarray, answer: np.ndarray) -> frozenset[int]:
    pairs = np.unique(np.stack([answer, context]), axis=1)
    answers, questions = np.unique(pairs[0], return_counts=True)
    return frozenset(answers[questions >= _STOCK].tolist())
