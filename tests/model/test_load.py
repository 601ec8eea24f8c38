from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from gradian import supported
from gradian.config.schema import Config
from gradian.errors import AdapterError, ModelError
from gradian.grads.loss import example_losses
from gradian.model.load import load_model, resolve_device, resolve_dtype
from tests.tiny_models import random_examples, tiny_base
from tests.versions import SAVES_LORA_BIASES

IDS = torch.tensor([[5, 9, 33, 7, 8, 20]])


def config_for(base: Path, adapter: Path | None, **settings: Any) -> Config:
    return Config(
        base_model=str(base), adapter_path=str(adapter) if adapter else None, device="cpu", **settings
    )


def test_a_loaded_model_is_frozen_in_eval_mode_and_equals_peft(
    tiny_model_dir: Path, tiny_adapter_dir: Path
) -> None:
    loaded = load_model(config_for(tiny_model_dir, tiny_adapter_dir))
    expected = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(tiny_model_dir), tiny_adapter_dir
    )
    torch.testing.assert_close(loaded.model(IDS).logits, expected.eval()(IDS).logits, rtol=1e-5, atol=1e-6)
    assert not any(m.training for m in loaded.model.modules())
    assert not any(p.requires_grad for p in loaded.model.parameters())
    assert loaded.model.config._attn_implementation == "eager"
    assert (loaded.device.type, loaded.dtype, loaded.findings) == ("cpu", torch.float32, ())


def test_switching_the_adapter_off_gives_the_base_model_and_on_again_the_tuned_one(
    tiny_model_dir: Path, tiny_adapter_dir: Path
) -> None:
    loaded = load_model(config_for(tiny_model_dir, tiny_adapter_dir))
    base = load_model(config_for(tiny_model_dir, None), adapter=False)
    tuned = loaded.model(IDS).logits
    with loaded.adapter_disabled():
        assert torch.equal(loaded.model(IDS).logits, base.model(IDS).logits)
    assert torch.equal(loaded.model(IDS).logits, tuned)
    assert not torch.allclose(tuned, base.model(IDS).logits, atol=1e-3)
    assert not any(p.requires_grad for p in loaded.model.parameters())


@pytest.mark.filterwarnings("ignore:Careful, disabling adapter layers with bias")
@pytest.mark.parametrize("bias", [pytest.param("lora_only", marks=SAVES_LORA_BIASES), "all"])
def test_trained_biases_go_back_to_the_base_models_when_the_adapter_is_off(tmp_path: Path, bias: str) -> None:
    tiny_base("gpt_neox").save_pretrained(tmp_path / "base")
    tuned = get_peft_model(
        AutoModelForCausalLM.from_pretrained(tmp_path / "base"),
        LoraConfig(r=2, target_modules=["query_key_value"], bias=bias, task_type="CAUSAL_LM"),
    )
    with torch.no_grad():
        for parameter in tuned.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.3)
    tuned.save_pretrained(tmp_path / "adapter")
    _copy_tokenizer(tmp_path)
    loaded = load_model(
        config_for(tmp_path / "base", tmp_path / "adapter", tokenizer=str(tmp_path / "tokenizer"))
    )
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "base", attn_implementation="eager").eval()
    expected = tuned.eval()(IDS).logits
    torch.testing.assert_close(loaded.model(IDS).logits, expected, rtol=1e-4, atol=1e-5)
    with loaded.adapter_disabled():
        torch.testing.assert_close(loaded.model(IDS).logits, base(IDS).logits, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(loaded.model(IDS).logits, expected, rtol=1e-4, atol=1e-5)


def _copy_tokenizer(folder: Path) -> None:
    from tests.conftest import make_tokenizer

    make_tokenizer().save_pretrained(folder / "tokenizer")


def test_an_adapter_is_needed_unless_the_caller_says_otherwise(tiny_model_dir: Path) -> None:
    with pytest.raises(AdapterError, match="--adapter"):
        load_model(config_for(tiny_model_dir, None))
    assert load_model(config_for(tiny_model_dir, None), adapter=False).model is not None


def test_the_dtype_is_float32_on_the_cpu_and_the_checkpoints_own_elsewhere(tiny_model_dir: Path) -> None:
    config = Config(base_model=str(tiny_model_dir))
    assert resolve_dtype(config, torch.device("cpu")) == torch.float32
    stored = json.loads((tiny_model_dir / "config.json").read_text())
    name = stored.get("dtype") or stored.get("torch_dtype")
    assert str(resolve_dtype(config, torch.device("cuda"))) == f"torch.{name}"
    named = Config(base_model=str(tiny_model_dir), dtype="bfloat16")
    assert resolve_dtype(named, torch.device("cpu")) == torch.bfloat16


def test_a_named_dtype_is_that_of_the_base_weights(tiny_model_dir: Path, tiny_adapter_dir: Path) -> None:
    loaded = load_model(config_for(tiny_model_dir, tiny_adapter_dir, dtype="bfloat16"))
    assert loaded.model.get_output_embeddings().weight.dtype == torch.bfloat16
    assert example_losses(loaded, random_examples([6]), 1)[0] > 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there_is_an_error() -> None:
    assert resolve_device(Config(device="auto")).type == "cpu"
    with pytest.raises(ModelError, match="cuda"):
        resolve_device(Config(device="cuda:3"))


def test_a_base_weight_that_is_not_in_the_files_is_an_error_not_a_random_number(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "base"
    shutil.copytree(tiny_model_dir, broken)
    weights = load_file(broken / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, broken / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"1 weights(.|\n)*up_proj"):
        load_model(config_for(broken, None), adapter=False)


def test_a_folder_that_transformers_cannot_load_is_a_model_error(
    tmp_path: Path, tiny_model_dir: Path
) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "no-such-architecture"}')
    config = config_for(tmp_path, None, tokenizer=str(tiny_model_dir))
    with pytest.raises(ModelError, match="cannot load the base model"):
        load_model(config, adapter=False)
    with pytest.raises(ModelError, match="cannot load the base model"):
        resolve_dtype(config, torch.device("cuda"))


def test_the_encoder_cuts_rows_at_the_given_length(tiny_model_dir: Path, tiny_adapter_dir: Path) -> None:
    from gradian.types import Example, Message

    loaded = load_model(config_for(tiny_model_dir, tiny_adapter_dir))
    example = Example("x-0", 0, "messages", (Message("user", "hello"), Message("assistant", "world " * 20)))
    assert len(loaded.encoder(48).encode(example)) == 48


class _Bomb:
    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (str(self.trace),))


def test_weights_that_are_a_pickle_of_code_are_refused_without_running_it(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    base, trace = tmp_path / "base", tmp_path / "trace"
    shutil.copytree(tiny_model_dir, base)
    (base / "model.safetensors").unlink()
    torch.save({"model.embed_tokens.weight": _Bomb(trace)}, base / "pytorch_model.bin")
    with pytest.raises(ModelError, match="cannot load the base model"):
        load_model(config_for(base, None), adapter=False)
    assert not trace.exists()


@pytest.mark.parametrize(
    "values",
    [{"dtype": "load", "torch_dtype": "load"}, {"hidden_act": "os.system"}, {"num_hidden_layers": "x"}],
)
def test_a_configuration_that_makes_no_model_is_a_model_error(
    tiny_model_dir: Path, tmp_path: Path, values: dict[str, Any]
) -> None:
    base = tmp_path / "base"
    shutil.copytree(tiny_model_dir, base)
    config = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps({**config, **values}))
    with pytest.raises(ModelError):
        load_model(config_for(base, None), adapter=False)


def test_a_pickle_is_not_given_to_a_torch_that_would_run_it(
    tiny_model_dir: Path, tiny_adapter_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, adapter = tmp_path / "base", tmp_path / "adapter"
    shutil.copytree(tiny_model_dir, base)
    shutil.copytree(tiny_adapter_dir, adapter)
    for folder, name in ((base, "model"), (adapter, "adapter_model")):
        tensors = load_file(folder / f"{name}.safetensors")
        (folder / f"{name}.safetensors").unlink()
        torch.save(tensors, folder / ("pytorch_model.bin" if folder == base else f"{name}.bin"))
    assert load_model(config_for(base, adapter)).findings == ()
    monkeypatch.setattr(supported, "installed_version", lambda _: "2.5.1")
    with pytest.raises(ModelError, match=r"torch 2\.5\.1 may run what is in it"):
        load_model(config_for(base, adapter))
    with pytest.raises(AdapterError, match=r"torch 2\.5\.1 may run what is in it"):
        load_model(config_for(tiny_model_dir, adapter))
