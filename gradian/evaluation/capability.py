"""What the fine-tune did to one capability: the same model, adapter off and on, over the same items."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from gradian.config.schema import Config
from gradian.errors import EvaluationError, NonFiniteError, RowError
from gradian.evaluation.bootstrap import paired_bootstrap
from gradian.evaluation.generate import Generation, generate_answers
from gradian.evaluation.metrics import METRICS, Metric, answer_problem, score_text
from gradian.grads.loss import example_losses
from gradian.types import EncodedExample, Example, FloatArray

if TYPE_CHECKING:
    from gradian.data.chat import ChatEncoder
    from gradian.model.load import LoadedModel

Verdict = Literal["regressed", "improved", "not_significant"]

# How many faulty eval rows one error lists.
_SHOWN_ROWS = 20


@dataclass(frozen=True)
class ItemResult:
    """One eval item, judged without and with the adapter.

    Attributes:
        example_id: the row's id.
        prompt: the row's last turn before the answer.
        expected: the row's answer.
        base_text: what the base model said; None under a metric that generates nothing.
        tuned_text: what the tuned model said; None likewise.
        base_token_ids: the same as tokens, end of turn included; empty where nothing was generated.
        tuned_token_ids: likewise.
        base_score: 1 right, 0 wrong; under `loglik` the mean log-likelihood of the answer, nats a token.
        tuned_score: likewise.
        margin: how strongly the base model preferred the right answer to what the tuned model says, in nats a
            token: loss(said by tuned) - loss(right answer), both under the base model, the loss being the
            mean over the answer's tokens. The right answer is the row's; under `not_contains`, whose rows
            hold no answer, it is what the base model said. None unless the item regressed under a text
            metric.
        regressed: the tuned score is below the base score.
        flipped: right before, wrong now; under `loglik` the same as `regressed`.
        base_failed: wrong now, and wrong before too, so no training example explains it. Never under
            `loglik`, which calls nothing right or wrong.
    """

    example_id: str
    prompt: str
    expected: str
    base_text: str | None
    tuned_text: str | None
    base_token_ids: tuple[int, ...]
    tuned_token_ids: tuple[int, ...]
    base_score: float
    tuned_score: float
    margin: float | None
    regressed: bool
    flipped: bool
    base_failed: bool


@dataclass(frozen=True)
class CapabilityResult:
    """A capability before and after the fine-tune.

    Attributes:
        name: what the user calls it.
        metric: how answers were judged.
        proxy_used: a likelihood stood in for right or wrong.
        items: one result an eval row, in dataset order.
        base: mean score of the base model.
        tuned: mean score of the tuned model.
        delta: mean of the items' differences, tuned minus base.
        ci_low: lower end of the delta's bootstrap interval.
        ci_high: upper end.
        n_items: number of items.
        n_flipped: how many went from right to wrong.
        n_already_failing: how many the base model fails too.
        verdict: `regressed` when the whole interval is below zero, `improved` when it is above, else
            `not_significant`.
        mean_margin: mean margin of the items that have one; None when none has.
    """

    name: str
    metric: str
    proxy_used: bool
    items: tuple[ItemResult, ...]
    base: float
    tuned: float
    delta: float
    ci_low: float
    ci_high: float
    n_items: int
    n_flipped: int
    n_already_failing: int
    verdict: Verdict
    mean_margin: float | None


def measure_capability(
    loaded: LoadedModel,
    examples: Sequence[Example],
    config: Config,
    name: str,
    progress: Callable[[int], None] | None = None,
) -> CapabilityResult:
    """Judge the base and the tuned model on the eval rows.

    Args:
        loaded: base model with its adapter.
        examples: the eval rows; the final assistant turn of each is the wanted answer.
        config: metric, generation and bootstrap settings; the seed; `grads.max_seq_length`.
        name: the capability's name.
        progress: called with the number of answers just finished, `2 * len(examples)` in all.

    Raises:
        EvaluationError: no rows, rows without an answer, rows that do not fit the model or `max_seq_length`.
    """
    metric = METRICS[config.evaluation.metric]
    encoder = loaded.encoder(config.grads.max_seq_length)
    try:
        answers = _encode_answers(encoder, examples, metric)
        if metric.text is None:
            items = _judge_likelihood(loaded, examples, answers, config, progress)
        else:
            items = _judge_text(loaded, encoder, examples, answers, metric, config, progress)
    except EvaluationError as error:
        # Rows do not know their file.
        raise error.within(config.eval_dataset) from None
    base = np.array([item.base_score for item in items])
    tuned = np.array([item.tuned_score for item in items])
    settings = config.evaluation
    interval = paired_bootstrap(base, tuned, settings.n_bootstrap, settings.ci_level, config.seed)
    margins = [item.margin for item in items if item.margin is not None]
    return CapabilityResult(
        name=name,
        metric=metric.name,
        proxy_used=metric.proxy,
        items=items,
        base=float(base.mean()),
        tuned=float(tuned.mean()),
        delta=interval.delta,
        ci_low=interval.low,
        ci_high=interval.high,
        n_items=len(items),
        n_flipped=sum(item.flipped for item in items),
        n_already_failing=sum(item.base_failed for item in items),
        verdict=verdict_of(interval.low, interval.high),
        mean_margin=float(np.mean(margins)) if margins else None,
    )


def verdict_of(low: float, high: float) -> Verdict:
    """Return what an interval of the delta says: only one that excludes zero says anything."""
    if high < 0:
        return "regressed"
    return "improved" if low > 0 else "not_significant"


def _encode_answers(
    encoder: ChatEncoder, examples: Sequence[Example], metric: Metric
) -> list[EncodedExample]:
    # Every row is looked at before the first forward pass, so that one error names all the faulty ones.
    if not examples:
        raise EvaluationError("the eval set has no rows", fix="give a file with at least one row")
    encoded: list[EncodedExample] = []
    faults: list[str] = []
    for example in examples:
        where = f"eval row {example.position + 1}"
        if not example.messages or example.messages[-1].role != "assistant":
            faults.append(f"{where}: no assistant answer")
            continue
        problem = answer_problem(metric.name, example.target)
        if problem is not None:
            faults.append(f"{where}: {problem}")
            continue
        try:
            answer = encoder.encode_answer(example)
        except RowError as error:
            faults.append(f"{where}: {error.problem}")
            continue
        if answer.truncated or answer.n_supervised == 0:
            faults.append(
                f"{where}: the row has {len(answer) + answer.truncated} tokens, more than "
                f"grads.max_seq_length={encoder.max_seq_length}"
            )
            continue
        encoded.append(answer)
    if faults:
        more = len(faults) - _SHOWN_ROWS
        raise EvaluationError(
            f"{len(faults)} of {len(examples)} eval rows cannot be measured with {metric.name}",
            found="; ".join(faults[:_SHOWN_ROWS]) + (f"; and {more} more" if more > 0 else ""),
            expected="rows whose last turn is the wanted answer, within grads.max_seq_length",
            fix="correct these rows, or give another file with --eval-dataset",
        )
    return encoded


def _judge_likelihood(
    loaded: LoadedModel,
    examples: Sequence[Example],
    answers: Sequence[EncodedExample],
    config: Config,
    progress: Callable[[int], None] | None,
) -> tuple[ItemResult, ...]:
    with loaded.adapter_disabled():
        base = -_losses(loaded, answers, config, progress)
    tuned = -_losses(loaded, answers, config, progress)
    return tuple(
        ItemResult(
            example_id=example.id,
            prompt=example.prompt,
            expected=example.target,
            base_text=None,
            tuned_text=None,
            base_token_ids=(),
            tuned_token_ids=(),
            base_score=float(before),
            tuned_score=float(after),
            margin=None,
            regressed=bool(after < before),
            flipped=bool(after < before),
            base_failed=False,
        )
        for example, before, after in zip(examples, base, tuned, strict=True)
    )


def _judge_text(
    loaded: LoadedModel,
    encoder: ChatEncoder,
    examples: Sequence[Example],
    answers: Sequence[EncodedExample],
    metric: Metric,
    config: Config,
    progress: Callable[[int], None] | None,
) -> tuple[ItemResult, ...]:
    settings = config.evaluation
    # The same random stream for both, so that sampling adds no difference that the adapter did not make.
    with loaded.adapter_disabled():
        base = generate_answers(loaded, encoder, examples, settings, config.seed, progress)
    tuned = generate_answers(loaded, encoder, examples, settings, config.seed, progress)
    items = [
        _judged(metric, example, before, after)
        for example, before, after in zip(examples, base, tuned, strict=True)
    ]
    lost = [k for k, item in enumerate(items) if item.regressed]
    right = [
        answers[k]
        if metric.answer_is_wanted
        else encoder.encode_continuation(examples[k], items[k].base_token_ids)
        for k in lost
    ]
    said = [encoder.encode_continuation(examples[k], items[k].tuned_token_ids) for k in lost]
    if lost:
        with loaded.adapter_disabled():
            losses = _losses(loaded, [*right, *said], config)
        margins = losses[len(lost) :] - losses[: len(lost)]
        for k, margin in zip(lost, margins, strict=True):
            items[k] = replace(items[k], margin=float(margin))
    return tuple(items)


def _judged(metric: Metric, example: Example, base: Generation, tuned: Generation) -> ItemResult:
    before = score_text(metric.name, base.text, example.target)
    after = score_text(metric.name, tuned.text, example.target)
    return ItemResult(
        example_id=example.id,
        prompt=example.prompt,
        expected=example.target,
        base_text=base.text,
        tuned_text=tuned.text,
        base_token_ids=base.token_ids,
        tuned_token_ids=tuned.token_ids,
        base_score=before,
        tuned_score=after,
        margin=None,
        regressed=after < before,
        flipped=before == 1.0 and after == 0.0,
        base_failed=before == 0.0 and after == 0.0,
    )


def _losses(
    loaded: LoadedModel,
    encoded: Sequence[EncodedExample],
    config: Config,
    progress: Callable[[int], None] | None = None,
) -> FloatArray:
    # Nats a token, whatever reduction the training gradients use.
    losses = example_losses(loaded, encoded, config.evaluation.batch_size, "mean", progress)
    if not np.isfinite(losses).all():
        bad = encoded[int(np.argmin(np.isfinite(losses)))]
        raise NonFiniteError(
            "the loss of an answer is not a finite number",
            where=f"eval row {bad.position + 1}",
            found=f"example {bad.id}",
            fix="try dtype: float32, and check the adapter's weights",
        )
    return losses
