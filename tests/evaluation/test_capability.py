from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gradian.config.schema import Config
from gradian.errors import EvaluationError, NonFiniteError
from gradian.evaluation.bootstrap import paired_bootstrap
from gradian.evaluation.capability import measure_capability, verdict_of
from gradian.evaluation.generate import generate_answers
from gradian.model.load import LoadedModel, load_model
from gradian.types import Example, Message

QUESTIONS = [
    "capital of France?",
    "say hi",
    "2+2",
    "who are you, and why?",
    "list: a, b",
    "x",
    "name a city",
    "end",
]


def settings(folder: Path, adapter: Path | None = None, **evaluation: Any) -> Config:
    return Config.model_validate(
        {
            "base_model": str(folder),
            "adapter_path": None if adapter is None else str(adapter),
            "evaluation": {"max_new_tokens": 8, "n_bootstrap": 200, "batch_size": 3} | evaluation,
        }
    )


def row(position: int, question: str, answer: str) -> Example:
    turns = (Message("user", question), Message("assistant", answer))
    return Example(id=f"row-{position}", position=position, shape="messages", messages=turns)


@pytest.fixture(scope="module")
def strong_adapter(tmp_path_factory: pytest.TempPathFactory, tiny_adapter_dir: Path) -> Path:
    """The tiny adapter, ten times as strong, so that it changes what the model says."""
    from safetensors.torch import load_file, save_file

    folder = tmp_path_factory.mktemp("strong")
    for path in tiny_adapter_dir.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    weights = load_file(folder / "adapter_model.safetensors")
    save_file(
        {name: tensor * (10 if "lora_B" in name else 1) for name, tensor in weights.items()},
        folder / "adapter_model.safetensors",
    )
    return folder


@pytest.fixture(scope="module")
def loaded(tiny_model_dir: Path, strong_adapter: Path) -> LoadedModel:
    return load_model(settings(tiny_model_dir, strong_adapter))


def said(loaded: LoadedModel, config: Config, adapter: bool) -> list[str]:
    rows = [row(i, question, "-") for i, question in enumerate(QUESTIONS)]
    encoder = loaded.encoder(config.grads.max_seq_length)
    if adapter:
        return [a.text for a in generate_answers(loaded, encoder, rows, config.evaluation, 0)]
    with loaded.adapter_disabled():
        return [a.text for a in generate_answers(loaded, encoder, rows, config.evaluation, 0)]


def loss_by_hand(loaded: LoadedModel, head: list[int], tail: list[int]) -> float:
    """Mean nats a token of `tail` after `head`, from one plain forward pass."""
    with torch.no_grad():
        logits = loaded.model(input_ids=torch.tensor([head + tail])).logits[0].double()
    log_chance = logits.log_softmax(-1)
    return -float(np.mean([log_chance[len(head) + k - 1, token] for k, token in enumerate(tail)]))


@pytest.fixture(scope="module")
def lost(loaded: LoadedModel, tiny_model_dir: Path) -> tuple[Config, list[Example], list[str], list[str]]:
    """Eval rows whose wanted answers are what the base model says, but for the last, which nobody says."""
    config = settings(tiny_model_dir, metric="exact_match")
    base, tuned = said(loaded, config, False), said(loaded, config, True)
    assert all(base)
    wanted = [*base[:-1], "nobody says this"]
    rows = [row(i, q, a) for i, (q, a) in enumerate(zip(QUESTIONS, wanted, strict=True))]
    return config, rows, base, tuned


def test_a_lost_capability_is_measured_item_by_item(
    loaded: LoadedModel, lost: tuple[Config, list[Example], list[str], list[str]]
) -> None:
    config, rows, base, tuned = lost
    seen: list[int] = []
    got = measure_capability(loaded, rows, config, "talk", seen.append)

    assert [item.base_text for item in got.items] == base
    assert [item.tuned_text for item in got.items] == tuned
    assert sum(b != t for b, t in zip(base, tuned, strict=True)) > 4
    assert [item.base_score for item in got.items] == [1.0] * 7 + [0.0]
    assert [item.tuned_score for item in got.items] == [
        float(t == b and k < 7) for k, (b, t) in enumerate(zip(base, tuned, strict=True))
    ]
    assert [item.regressed for item in got.items] == [i.tuned_score < i.base_score for i in got.items]
    assert [item.flipped for item in got.items] == [item.regressed for item in got.items]
    assert [item.base_failed for item in got.items] == [False] * 7 + [True]
    assert [(item.example_id, item.prompt) for item in got.items] == [(r.id, r.prompt) for r in rows]

    assert (got.name, got.metric, got.proxy_used) == ("talk", "exact_match", False)
    assert got.base == pytest.approx(7 / 8)
    assert got.tuned - got.base == pytest.approx(got.delta)
    assert (got.n_items, got.n_already_failing) == (8, 1)
    assert got.n_flipped == sum(item.flipped for item in got.items) > 4
    assert got.verdict == "regressed"
    assert sum(seen) == 16
    interval = paired_bootstrap(
        np.array([i.base_score for i in got.items]),
        np.array([i.tuned_score for i in got.items]),
        200,
        0.95,
        config.seed,
    )
    assert (got.delta, got.ci_low, got.ci_high) == (interval.delta, interval.low, interval.high)


def test_the_margin_is_the_base_models_loss_of_what_was_said_less_that_of_the_wanted_answer(
    loaded: LoadedModel, lost: tuple[Config, list[Example], list[str], list[str]]
) -> None:
    config, rows, _, _ = lost
    got = measure_capability(loaded, rows, config, "talk")
    encoder = loaded.encoder(config.grads.max_seq_length)
    margins = []
    for example, item in zip(rows, got.items, strict=True):
        if not item.regressed:
            assert item.margin is None
            continue
        prompt = encoder.encode_prompt(example).tolist()
        wanted = encoder.encode_answer(example).input_ids.tolist()[len(prompt) :]
        with loaded.adapter_disabled():
            want = loss_by_hand(loaded, prompt, list(item.tuned_token_ids)) - loss_by_hand(
                loaded, prompt, wanted
            )
        assert item.margin == pytest.approx(want, abs=1e-4)
        margins.append(item.margin)
    assert got.mean_margin == pytest.approx(np.mean(margins))


def test_under_not_contains_the_right_answer_is_what_the_base_model_said(
    loaded: LoadedModel, lost: tuple[Config, list[Example], list[str], list[str]], tiny_model_dir: Path
) -> None:
    _, _, base, tuned = lost
    config = settings(tiny_model_dir, metric="not_contains")
    k = next(k for k in range(8) if tuned[k].strip() and tuned[k] not in base[k] and "|" not in tuned[k])
    example = row(0, QUESTIONS[k], f"{tuned[k]} | neversaid")
    (item,) = measure_capability(loaded, [example], config, "polite").items
    assert (item.base_score, item.tuned_score, item.flipped) == (1.0, 0.0, True)
    prompt = loaded.encoder(1024).encode_prompt(example).tolist()
    with loaded.adapter_disabled():
        want = loss_by_hand(loaded, prompt, list(item.tuned_token_ids)) - loss_by_hand(
            loaded, prompt, list(item.base_token_ids)
        )
    assert item.margin == pytest.approx(want, abs=1e-4)


def test_likelihood_scores_the_wanted_answer_without_generating(
    loaded: LoadedModel, tiny_model_dir: Path
) -> None:
    config = settings(tiny_model_dir, metric="loglik")
    rows = [row(i, question, f"answer {i}") for i, question in enumerate(QUESTIONS)]
    seen: list[int] = []
    got = measure_capability(loaded, rows, config, "style", seen.append)
    encoder = loaded.encoder(1024)
    for example, item in zip(rows, got.items, strict=True):
        prompt = encoder.encode_prompt(example).tolist()
        tail = encoder.encode_answer(example).input_ids.tolist()[len(prompt) :]
        assert item.tuned_score == pytest.approx(-loss_by_hand(loaded, prompt, tail), abs=1e-4)
        with loaded.adapter_disabled():
            assert item.base_score == pytest.approx(-loss_by_hand(loaded, prompt, tail), abs=1e-4)
        assert (item.base_text, item.tuned_text, item.margin) == (None, None, None)
        assert (item.base_token_ids, item.tuned_token_ids) == ((), ())
        assert item.regressed == item.flipped == (item.tuned_score < item.base_score)
        assert not item.base_failed
    assert got.proxy_used
    assert (got.n_already_failing, got.mean_margin) == (0, None)
    assert sum(seen) == 16


def test_the_loss_reduction_of_the_gradients_does_not_change_a_likelihood(
    loaded: LoadedModel, tiny_model_dir: Path
) -> None:
    config = settings(tiny_model_dir, metric="loglik")
    summed = config.model_copy(update={"grads": config.grads.model_copy(update={"loss_reduction": "sum"})})
    rows = [row(0, "q", "an answer")]
    assert measure_capability(loaded, rows, summed, "x") == measure_capability(loaded, rows, config, "x")


def test_items_that_occur_twice_are_judged_alike(loaded: LoadedModel, tiny_model_dir: Path) -> None:
    config = settings(tiny_model_dir, metric="contains")
    first, second = measure_capability(
        loaded, [row(0, "q", "Paris"), row(1, "q", "Paris")], config, "twice"
    ).items
    assert replace(second, example_id=first.example_id) == first


def test_without_a_change_nothing_regressed(loaded: LoadedModel, tiny_model_dir: Path) -> None:
    config = settings(tiny_model_dir, metric="contains")
    got = measure_capability(loaded, [row(i, q, "Paris") for i, q in enumerate(QUESTIONS)], config, "same")
    assert (got.delta, got.ci_low, got.ci_high, got.verdict) == (0.0, 0.0, 0.0, "not_significant")
    assert (got.n_already_failing, got.mean_margin) == (8, None)


def test_an_empty_eval_set_is_refused(loaded: LoadedModel, tiny_model_dir: Path) -> None:
    with pytest.raises(EvaluationError, match="no rows"):
        measure_capability(loaded, [], settings(tiny_model_dir), "none")


def test_every_row_that_cannot_be_measured_is_named_at_once(
    loaded: LoadedModel, tiny_model_dir: Path
) -> None:
    config = settings(tiny_model_dir, metric="not_contains")
    config = config.model_copy(update={"grads": config.grads.model_copy(update={"max_seq_length": 60})})
    rows = [
        row(0, "fine", "no"),
        replace(row(1, "q", "a"), messages=(Message("user", "q"),)),
        Example(id="t", position=2, shape="text", text="raw"),
        row(3, "q", " | "),
        row(4, "long " * 20, "no"),
        replace(row(5, "q", "a"), problem="an image part"),
    ]
    with pytest.raises(EvaluationError) as caught:
        measure_capability(loaded, rows, config, "bad")
    text = str(caught.value)
    assert "5 of 6 eval rows" in text
    assert (
        "eval row 2: no assistant answer; eval row 3: no assistant answer; eval row 4: there is no marker"
        in text
    )
    assert "max_seq_length=60" in text
    assert "eval row 6: an image part" in text
    assert "eval row 1:" not in text


def test_a_loss_that_is_no_number_is_refused_with_the_row(
    tiny_model_dir: Path, tiny_adapter_dir: Path
) -> None:
    config = settings(tiny_model_dir, tiny_adapter_dir, metric="loglik")
    model = load_model(config)
    with torch.no_grad():
        model.model.get_input_embeddings().weight[:] = float("nan")
    with pytest.raises(NonFiniteError, match="eval row 1"):
        measure_capability(model, [row(0, "q", "a")], config, "nan")


def test_only_an_interval_without_zero_is_a_verdict() -> None:
    assert verdict_of(-0.5, -0.1) == "regressed"
    assert verdict_of(0.1, 0.5) == "improved"
    assert {verdict_of(-0.5, 0.0), verdict_of(0.0, 0.5), verdict_of(-1, 1)} == {"not_significant"}


def test_results_are_made_of_json_values(loaded: LoadedModel, tiny_model_dir: Path) -> None:
    from dataclasses import asdict

    got = measure_capability(loaded, [row(0, "q", "a")], settings(tiny_model_dir), "json")
    assert json.loads(json.dumps(asdict(got)))["items"][0]["example_id"] == "row-0"
