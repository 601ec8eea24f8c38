"""What Gradian asks of unsloth, and what unsloth may do to the process without attribution noticing.

On machines without a GPU a stand-in does what unsloth does (`stand_in/unsloth`): it binds fast forward functions to
transformers' classes, which read attributes that only its own models have. What only the real one can show is in
`test_unsloth_gpu.py`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import transformers
from peft import PeftModel, PeftModelForCausalLM
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM
from transformers.models.llama import modeling_llama

import gradian
from gradian.config import Config
from gradian.data.formats import load_dataset
from gradian.errors import ConfigError, MissingExtraError, ModelError, RunError
from gradian.grads.collect import GradientCollector
from gradian.model.backends import unsloth as backend
from gradian.model.backends.base import run_training, training_backends
from gradian.model.backends.unsloth import (
    UnslothBackend,
    _restore_modeling_forwards,
    _snapshot_modeling_forwards,
    prepare_for_gradients,
    unsloth_compat_report,
)
from gradian.model.load import LoadedModel, load_model
from gradian.runs.gradian_run import read_run
from gradian.runs.read import read_run_folder
from gradian.types import EncodedExample

STAND_IN = Path(__file__).parent / "stand_in"
ROWS = [
    {"prompt": f"say {word}", "completion": word * (1 + place % 3)}
    for place, word in enumerate(["ab", "cde", "f", "gh", "ijk", "lm", "nop", "q"])
]


@pytest.fixture(autouse=True)
def unsloth(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The stand-in under unsloth's name, and the process as it was before afterwards."""
    monkeypatch.syspath_prepend(str(STAND_IN))
    monkeypatch.setattr(UnslothBackend, "unavailable", None)
    monkeypatch.setattr(os, "environ", os.environ.copy())
    before = _snapshot_modeling_forwards()
    import unsloth

    assert Path(unsloth.__file__ or "").is_relative_to(STAND_IN)
    yield unsloth
    _restore_modeling_forwards(before)
    for name in [name for name in sys.modules if name.partition(".")[0] == "unsloth"]:
        del sys.modules[name]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "train.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8")
    return path


def settings(model: Path, data: Path, out: Path, **train: Any) -> Config:
    return Config.model_validate(
        {
            "base_model": str(model),
            "dataset": str(data),
            "device": "cpu",
            "seed": 5,
            "cache_dir": str(out.parent / "cache"),
            "train": {"output_dir": str(out), "r": 2, "learning_rate": 1e-2, "max_seq_length": 64, **train},
        }
    )


def rows(config: Config, loaded: LoadedModel) -> list[EncodedExample]:
    return [loaded.encoder(64).encode(row) for row in load_dataset(config.dataset).examples]


def gradients(config: Config, loaded: LoadedModel) -> list[Tensor]:
    return GradientCollector(loaded, config.grads, config.seed).gradients(rows(config, loaded))


def plain_gradients(config: Config, adapter: Path) -> list[Tensor]:
    return gradients(config, load_model(config.model_copy(update={"adapter_path": str(adapter)})))


def fast_model(unsloth: ModuleType, config: Config, adapter: Path) -> LoadedModel:
    """A model that unsloth built, with the weights of an adapter of rank 4."""
    model, _ = unsloth.FastLanguageModel.from_pretrained(
        model_name=config.base_model, max_seq_length=64, dtype=torch.float32, load_in_4bit=False
    )
    tuned = unsloth.FastLanguageModel.get_peft_model(model, r=4, lora_alpha=8)
    weights = load_file(adapter / "adapter_model.safetensors")
    names = {name.replace(".default.", "."): name for name, _ in tuned.named_parameters() if "lora_" in name}
    assert set(names) == set(weights)
    tuned.load_state_dict({names[name]: value for name, value in weights.items()}, strict=False)
    tokenizer = backend.load_tokenizer(config.base_model, False)
    return LoadedModel(tuned, tokenizer, torch.device("cpu"), torch.float32)


def test_a_plain_model_built_after_unsloths_own_fails_unless_the_forwards_are_put_back(
    unsloth: ModuleType, tmp_path: Path, tiny_model_dir: Path, tiny_adapter_dir: Path, data: Path
) -> None:
    config = settings(tiny_model_dir, data, tmp_path / "run")
    before = plain_gradients(config, tiny_adapter_dir)
    snapshot = _snapshot_modeling_forwards()
    fast_model(unsloth, config, tiny_adapter_dir)

    with pytest.raises(AttributeError, match="'LlamaAttention' object has no attribute 'apply_qkv'"):
        AutoModelForCausalLM.from_pretrained(tiny_model_dir, attn_implementation="eager").model.layers[
            0
        ].self_attn(torch.zeros(1, 1, 32))
    _restore_modeling_forwards(snapshot)
    after = plain_gradients(config, tiny_adapter_dir)
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))


def test_training_and_then_analysing_in_one_process_is_as_if_unsloth_had_never_been_there(
    tmp_path: Path, tiny_model_dir: Path, tiny_adapter_dir: Path, data: Path
) -> None:
    config = settings(tiny_model_dir, data, tmp_path / "run")
    watched = (
        (modeling_llama.LlamaAttention, "forward"),
        (modeling_llama.LlamaDecoderLayer, "forward"),
        (modeling_llama.LlamaModel, "forward"),
        (modeling_llama.LlamaForCausalLM, "forward"),
        (PeftModelForCausalLM, "forward"),
        (modeling_llama, "LlamaRotaryEmbedding"),
        (transformers.Trainer, "_inner_training_loop"),
    )
    before = [getattr(owner, name) for owner, name in watched]
    plain = plain_gradients(config, tiny_adapter_dir)
    environment = dict(os.environ)

    run = run_training(config, backend="unsloth")

    assert [getattr(owner, name) for owner, name in watched] == before
    assert dict(os.environ) == environment
    again = plain_gradients(config, tiny_adapter_dir)
    assert all(torch.equal(one, other) for one, other in zip(plain, again, strict=True))
    report = gradian.analyze(
        config.model_copy(update={"adapter_path": str(run / "adapter"), "run_dir": str(run)})
    )
    assert len(report.examples) == len(ROWS)
    assert all(example.score == example.score for example in report.examples)


@pytest.mark.parametrize("failure", ["while the model is built", "while it trains"])
def test_the_forwards_are_put_back_when_training_fails(
    failure: str,
    unsloth: ModuleType,
    tmp_path: Path,
    tiny_model_dir: Path,
    data: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = modeling_llama.LlamaAttention.forward
    config = settings(tiny_model_dir, data, tmp_path / "run", learning_rate=1e30, max_grad_norm=0)
    if failure == "while the model is built":

        def refused(model: Any, **options: Any) -> Any:
            assert modeling_llama.LlamaAttention.forward is not before
            raise NotImplementedError("Unsloth: this is not yet implemented!")

        monkeypatch.setattr(unsloth.FastLanguageModel, "get_peft_model", refused)

    with pytest.raises((ModelError, RunError), match=r"not yet implemented|diverged"):
        run_training(config, backend="unsloth")

    assert modeling_llama.LlamaAttention.forward is before
    assert not (tmp_path / "run").exists()


def test_it_trains_as_the_hf_backend_does(tmp_path: Path, tiny_model_dir: Path, data: Path) -> None:
    options = {"num_train_epochs": 2, "gradient_accumulation_steps": 2}
    hf = run_training(settings(tiny_model_dir, data, tmp_path / "hf", **options))
    fast = run_training(settings(tiny_model_dir, data, tmp_path / "fast", **options), backend="unsloth")

    losses = [[row["loss"] for row in read_run(run).log_history if "loss" in row] for run in (hf, fast)]  # type: ignore[union-attr]
    assert losses[1] == pytest.approx(losses[0], rel=2e-5)
    ours, theirs = (load_file(run / "adapter" / "adapter_model.safetensors") for run in (hf, fast))
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        torch.testing.assert_close(theirs[name], value, rtol=1e-4, atol=1e-5)


def test_the_run_folder_holds_what_one_of_hf_does(
    tmp_path: Path, tiny_model_dir: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_training(
        settings(tiny_model_dir, data, tmp_path / "run", save_checkpoints=True), backend="unsloth"
    )

    record = read_run(run)
    assert record is not None
    assert (record.backend, record.steps) == ("unsloth", 4)
    assert record.base_model == record.lora["base_model_name_or_path"] == str(tiny_model_dir.resolve())
    assert record.lora["target_modules"] == sorted(
        ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    )
    assert [saved.step for saved in record.checkpoints] == [4]
    read = read_run_folder(run)
    assert (read.trainer, read.hyper.fp16, read.hyper.bf16) == ("gradian", False, False)
    assert len(read.train_log) == 4
    # The banner of unsloth goes where messages go: standard output is the command's result.
    assert capsys.readouterr().out == ""


def test_unsloth_gets_the_base_that_attribution_loads_and_nothing_that_changes_it(
    unsloth: ModuleType, tmp_path: Path, tiny_model_dir: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast = unsloth.FastLanguageModel
    calls: list[dict[str, Any]] = []
    loader = fast.from_pretrained

    def recorded(**options: Any) -> Any:
        calls.append(options)
        return loader(**options)

    monkeypatch.setattr(fast, "from_pretrained", recorded)
    run_training(settings(tiny_model_dir, data, tmp_path / "run", max_seq_length=4096), backend="unsloth")

    (options,) = calls
    assert Path(options["model_name"]).samefile(tiny_model_dir)
    assert options["use_exact_model_name"] is True
    assert options["load_in_4bit"] is False
    assert options["dtype"] is torch.float32
    # Longer than the model's positions would stretch them.
    assert options["max_seq_length"] == 512
    assert options["use_gradient_checkpointing"] is False


def test_four_bit_training_is_asked_of_unsloth(tmp_path: Path, tiny_model_dir: Path, data: Path) -> None:
    with pytest.raises(ModelError, match=r"unsloth cannot build the model(?s:.*)bitsandbytes needs a GPU"):
        run_training(settings(tiny_model_dir, data, tmp_path / "run", load_in_4bit=True), backend="unsloth")


def test_rows_beyond_the_models_positions_are_refused(
    tmp_path: Path, tiny_model_dir: Path, data: Path
) -> None:
    with data.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"prompt": "a", "completion": "b" * 600}) + "\n")

    with pytest.raises(ConfigError, match=r"a row of 6.. tokens, 512 positions"):
        run_training(settings(tiny_model_dir, data, tmp_path / "run", max_seq_length=1024), backend="unsloth")


def test_an_unsloth_that_does_not_import_is_no_traceback(
    tmp_path: Path, tiny_model_dir: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "unsloth", None)

    with pytest.raises(MissingExtraError, match=r"cannot be imported(?s:.*)constraints/unsloth\.txt"):
        run_training(settings(tiny_model_dir, data, tmp_path / "run"), backend="unsloth")


@pytest.mark.parametrize("state", ["as built", "generating", "checkpointing"])
@pytest.mark.parametrize("strategy", ["hooks", "loop"])
def test_after_prepare_for_gradients_the_gradients_are_those_of_the_plain_model(
    strategy: str,
    state: str,
    unsloth: ModuleType,
    tmp_path: Path,
    tiny_model_dir: Path,
    tiny_adapter_dir: Path,
    data: Path,
) -> None:
    config = settings(tiny_model_dir, data, tmp_path / "run")
    config = config.model_copy(update={"grads": config.grads.model_copy(update={"strategy": strategy})})
    expected = plain_gradients(config, tiny_adapter_dir)
    loaded = fast_model(unsloth, config, tiny_adapter_dir)
    if state == "generating":
        unsloth.FastLanguageModel.for_inference(loaded.model)
        with torch.inference_mode():
            loaded.model(input_ids=torch.tensor([[1, 2, 3]]))
    elif state == "checkpointing":
        base = loaded.model.get_base_model()
        # transformers 5 renamed it.
        getattr(base, "activation_checkpointing_enable", base.gradient_checkpointing_enable)()
        loaded.model.config.use_cache = True

    prepare_for_gradients(loaded.model)

    assert unsloth_compat_report(loaded.model)["ready_for_gradients"]
    found = gradients(config, loaded)
    for one, other in zip(expected, found, strict=True):
        assert one.abs().max() > 0
        torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-6)


def test_the_report_names_what_stands_between_a_model_and_its_gradients(
    unsloth: ModuleType, tmp_path: Path, tiny_model_dir: Path, tiny_adapter_dir: Path, data: Path
) -> None:
    config = settings(tiny_model_dir, data, tmp_path / "run")
    model = fast_model(unsloth, config, tiny_adapter_dir).model
    model.config.use_cache = True

    trained = unsloth_compat_report(model)
    unsloth.FastLanguageModel.for_inference(model)
    generating = unsloth_compat_report(model)
    prepare_for_gradients(model)
    prepared = unsloth_compat_report(model)

    assert (trained["ready_for_gradients"], generating["ready_for_gradients"]) == (False, False)
    assert (trained["fused_cross_entropy"], trained["training"], trained["use_cache"]) == (True, True, True)
    assert trained["trainable"] == 28
    assert any(name.endswith("model") for name in trained["gradient_checkpointing"])
    assert {name.rpartition(".")[2] for name in trained["fused_lora"]} == {"self_attn", "mlp"}
    assert trained["inference_mode"] == [] != generating["inference_mode"]
    attention = "transformers.models.llama.modeling_llama.LlamaAttention"
    assert trained["rebound"][attention] == "unsloth.models.llama.LlamaAttention_fast_forward"
    assert prepared["ready_for_gradients"] is True
    assert not any(
        prepared[key]
        for key in (
            "fused_cross_entropy",
            "gradient_checkpointing",
            "use_cache",
            "inference_mode",
            "fused_lora",
        )
    )
    json.dumps(trained, allow_nan=False)


def test_a_plain_model_has_nothing_rebound(tiny_model_dir: Path, tiny_adapter_dir: Path) -> None:
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tiny_model_dir), tiny_adapter_dir)

    report = unsloth_compat_report(model)

    assert report["rebound"] == {}
    assert report["fused_lora"] == report["inference_mode"] == []


def test_the_backend_is_registered() -> None:
    assert isinstance(training_backends()["unsloth"], UnslothBackend)
