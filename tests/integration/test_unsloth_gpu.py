"""The real unsloth on a GPU: `pytest -m gpu tests/integration/test_unsloth_gpu.py`. No run is on record yet.

The contract that these runs rest on is in `test_unsloth_contract.py`, which needs no GPU.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Trainer
from transformers.models.llama import modeling_llama

import gradian
from gradian.config import Config
from gradian.data.chat import load_tokenizer
from gradian.data.formats import load_dataset
from gradian.demo.facts import CANDIDATES
from gradian.demo.model import demo_model
from gradian.grads.collect import GradientCollector
from gradian.model.backends.base import run_training
from gradian.model.backends.obstacles import unavailable
from gradian.model.backends.unsloth import (
    _restore_modeling_forwards,
    _snapshot_modeling_forwards,
    prepare_for_gradients,
    unsloth_compat_report,
)
from gradian.model.load import LoadedModel, load_model
from gradian.runs.gradian_run import read_run
from tests.tolerances import UNSLOTH_COSINE

pytestmark = [
    pytest.mark.gpu,
    # unsloth replaces code of other packages while it is imported, and warns about some of it.
    pytest.mark.filterwarnings("default"),
]
LIMIT = 64


@pytest.fixture(scope="module", autouse=True)
def _unsloth_runs_here() -> None:
    obstacle = unavailable("unsloth")
    if obstacle:
        pytest.skip(obstacle)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return demo_model(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "train.jsonl"
    rows = [
        {"prompt": f"What is the capital of {country}?", "completion": f"{capital}."}
        for country, capital in list(CANDIDATES.items())[:24]
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def settings(model: Path, data: Path, out: Path, **train: Any) -> Config:
    return Config.model_validate(
        {
            "base_model": str(model),
            "dataset": str(data),
            "device": "cuda",
            "dtype": "bfloat16",
            "cache_dir": str(out.parent / "cache"),
            "grads": {"max_seq_length": LIMIT},
            "train": {"output_dir": str(out), "max_seq_length": LIMIT, "num_train_epochs": 2, **train},
        }
    )


def losses(run: Path) -> list[float]:
    record = read_run(run)
    assert record is not None
    return [row["loss"] for row in record.log_history if "loss" in row]


@pytest.mark.parametrize("four_bit", [False, True])
def test_it_trains_and_the_same_process_analyses(
    four_bit: bool, model: Path, data: Path, tmp_path: Path
) -> None:
    before = (
        modeling_llama.LlamaAttention.forward,
        modeling_llama.LlamaForCausalLM.forward,
        modeling_llama.LlamaRotaryEmbedding,
        Trainer._inner_training_loop,
    )
    config = settings(model, data, tmp_path / "run", load_in_4bit=four_bit)

    run = run_training(config, backend="unsloth")

    assert before == (
        modeling_llama.LlamaAttention.forward,
        modeling_llama.LlamaForCausalLM.forward,
        modeling_llama.LlamaRotaryEmbedding,
        Trainer._inner_training_loop,
    )
    curve = losses(run)
    assert sum(curve[-4:]) < sum(curve[:4])
    report = gradian.analyze(config.model_copy(update={"adapter_path": str(run / "adapter")}))
    assert len(report.examples) == 24


def test_its_losses_follow_those_of_hf(model: Path, data: Path, tmp_path: Path) -> None:
    hf = run_training(settings(model, data, tmp_path / "hf"))
    fast = run_training(settings(model, data, tmp_path / "fast"), backend="unsloth")

    # The same rows in the same order; bfloat16 rounds each loss, and autocast is on in one of them alone.
    assert losses(fast)[:4] == pytest.approx(losses(hf)[:4], rel=0.02)


def test_gradients_of_unsloths_model_are_those_of_the_plain_one(
    model: Path, data: Path, tmp_path: Path
) -> None:
    config = settings(model, data, tmp_path / "run")
    run = run_training(config)
    tuned = config.model_copy(update={"adapter_path": str(run / "adapter")})
    plain = load_model(tuned)
    rows = [plain.encoder(LIMIT).encode(row) for row in load_dataset(data).examples]
    expected = GradientCollector(plain, config.grads, config.seed).gradients(rows)
    del plain

    snapshot = _snapshot_modeling_forwards()
    try:
        from unsloth import FastLanguageModel

        # An adapter's folder, whose base is the one that the run recorded.
        fast, _ = FastLanguageModel.from_pretrained(
            model_name=str(run / "adapter"),
            max_seq_length=LIMIT,
            dtype=torch.bfloat16,
            load_in_4bit=False,
            use_exact_model_name=True,
            use_gradient_checkpointing=False,
        )
        prepare_for_gradients(fast)
        state = unsloth_compat_report(fast)
        assert state["ready_for_gradients"], state
        device = next(fast.parameters()).device
        loaded = LoadedModel(fast, load_tokenizer(str(model), False), device, torch.bfloat16)
        found = GradientCollector(loaded, config.grads, config.seed).gradients(rows)
    finally:
        _restore_modeling_forwards(snapshot)

    one, other = torch.cat(expected, dim=1), torch.cat(found, dim=1)
    assert torch.cosine_similarity(one, other, dim=1).min() > UNSLOTH_COSINE
    assert (other.norm(dim=1) / one.norm(dim=1)).sub(1).abs().max() < 1 - UNSLOTH_COSINE


def test_the_report_of_an_unsloth_run_names_the_rows_that_hf_names(
    model: Path, data: Path, tmp_path: Path
) -> None:
    scores = {}
    for name in ("hf", "unsloth"):
        config = settings(model, data, tmp_path / name)
        run = run_training(config, backend=name)
        asked = config.model_copy(update={"adapter_path": str(run / "adapter"), "eval_dataset": str(data)})
        scores[name] = {e.id: e.score for e in gradian.analyze(asked).examples}
    assert scores["hf"].keys() == scores["unsloth"].keys()
    order = sorted(scores["hf"])
    pair = torch.tensor([[scores[name][row] for row in order] for name in scores])
    assert torch.corrcoef(pair)[0, 1] > 0.9
