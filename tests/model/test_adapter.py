from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.lora import LoraLayer
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from gradian.errors import AdapterError
from gradian.model.adapter import attach_adapter, read_adapter_config, read_adapter_tensors
from tests.tiny_models import tiny_base


@pytest.fixture
def base(tiny_model_dir: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(tiny_model_dir)


@pytest.fixture
def adapter(tiny_adapter_dir: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(tiny_adapter_dir, tmp_path / "adapter"))


def change_config(folder: Path, **values: Any) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def change_tensors(folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    path = folder / "adapter_model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, metadata={"format": "pt"})


def first(tensors: dict[str, torch.Tensor], part: str = "lora_B") -> str:
    return next(name for name in sorted(tensors) if part in name)


def test_every_tensor_of_the_file_is_in_the_model(base: Any, adapter: Path) -> None:
    attached = attach_adapter(base, str(adapter))
    state = attached.model.state_dict()
    for name, value in read_adapter_tensors(adapter).items():
        assert torch.equal(state[name.replace(".weight", ".default.weight")], value)
    assert attached.findings == ()
    assert attached.base_values == {}


def test_a_missing_tensor_is_an_error_that_names_it(base: Any, adapter: Path) -> None:
    change_tensors(adapter, lambda tensors: tensors.__delitem__(first(tensors)))
    with pytest.raises(AdapterError, match=r"1 adapter tensors are missing(.|\n)*lora_B"):
        attach_adapter(base, str(adapter))


def test_a_layer_of_a_listed_target_without_tensors_is_missing(base: Any, adapter: Path) -> None:
    def cut(tensors: dict[str, torch.Tensor]) -> None:
        for name in [n for n in tensors if "layers.1.mlp.up_proj" in n]:
            del tensors[name]

    change_tensors(adapter, cut)
    with pytest.raises(AdapterError, match="2 adapter tensors are missing"):
        attach_adapter(base, str(adapter))


def test_a_tensor_without_a_place_is_an_error(base: Any, adapter: Path) -> None:
    change_tensors(
        adapter, lambda tensors: tensors.update({"base_model.model.extra.lora_A.weight": torch.ones(4, 2)})
    )
    with pytest.raises(AdapterError, match=r"1 have no place(.|\n)*extra\.lora_A"):
        attach_adapter(base, str(adapter))


def test_a_tensor_of_another_shape_is_an_error(adapter: Path) -> None:
    with pytest.raises(AdapterError, match=r"do not fit(.|\n)*size mismatch(.|\n)*base model"):
        attach_adapter(tiny_base("llama"), str(adapter))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_tensor_that_is_not_finite_is_an_error(base: Any, adapter: Path, value: float) -> None:
    def spoil(tensors: dict[str, torch.Tensor]) -> None:
        tensors[first(tensors)][0, 0] = value

    change_tensors(adapter, spoil)
    with pytest.raises(AdapterError, match="1 of 28 adapter tensors hold NaN or infinity"):
        attach_adapter(base, str(adapter))


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_resized_vocabulary_is_an_error_that_says_so(
    base: Any, tmp_path: Path, tiny_model_dir: Path
) -> None:
    resized = AutoModelForCausalLM.from_pretrained(tiny_model_dir)
    resized.resize_token_embeddings(300)
    model = get_peft_model(
        resized,
        LoraConfig(r=2, target_modules=["q_proj", "embed_tokens", "lm_head"], task_type="CAUSAL_LM"),
    )
    model.save_pretrained(tmp_path)
    with pytest.raises(AdapterError, match=r"size mismatch(.|\n)*vocabulary was resized"):
        attach_adapter(base, str(tmp_path))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"peft_type": "PREFIX_TUNING"}, "only LoRA"),
        ({"task_type": "SEQ_CLS"}, r"not for a causal language model(.|\n)*SEQ_CLS"),
        ({"init_lora_weights": "pissa_niter_4"}, "initialisation rewrote"),
        ({"init_lora_weights": "olora"}, "initialisation rewrote"),
    ],
)
def test_adapters_of_another_kind_are_refused(
    base: Any, adapter: Path, values: dict[str, Any], message: str
) -> None:
    change_config(adapter, **values)
    with pytest.raises(AdapterError, match=message):
        attach_adapter(base, str(adapter))


def test_an_adapter_without_a_task_type_loads(base: Any, adapter: Path) -> None:
    change_config(adapter, task_type=None, base_model_name_or_path="somebody/elses-base")
    assert attach_adapter(base, str(adapter)).findings == ()


@pytest.mark.parametrize("text", ["{", "[1]", ""])
def test_a_configuration_that_is_no_json_object_is_an_error(adapter: Path, text: str) -> None:
    (adapter / "adapter_config.json").write_text(text)
    with pytest.raises(AdapterError, match=r"adapter_config\.json"):
        read_adapter_config(adapter)


def test_a_cut_weight_file_is_an_error(adapter: Path) -> None:
    path = adapter / "adapter_model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(AdapterError, match="cannot be read"):
        read_adapter_tensors(adapter)


class _Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path("/tmp/gradian-pickle-ran"),))


def test_a_pickle_that_runs_code_is_refused_without_running_it(adapter: Path) -> None:
    (adapter / "adapter_model.safetensors").unlink()
    marker = Path("/tmp/gradian-pickle-ran")
    marker.unlink(missing_ok=True)
    torch.save({"a": _Bomb()}, adapter / "adapter_model.bin")
    with pytest.raises(AdapterError, match="cannot be read"):
        read_adapter_tensors(adapter)
    assert not marker.exists()


def test_a_further_adapter_beside_the_one_that_is_read_is_reported(base: Any, adapter: Path) -> None:
    for name in ("reference", "checkpoint-9"):
        (adapter / name).mkdir()
        (adapter / name / "adapter_config.json").write_text("{}")
    (finding,) = attach_adapter(base, str(adapter)).findings
    assert (finding.id, finding.figures["adapters"]) == ("model.other_adapters", ["reference"])


@pytest.mark.parametrize("module", ["megatron.core", "antigravity"])
def test_a_module_that_the_configuration_names_is_not_imported(base: Any, adapter: Path, module: str) -> None:
    change_config(adapter, megatron_config={"hidden_size": 4}, megatron_core=module)
    attached = attach_adapter(base, str(adapter))
    assert module not in sys.modules
    assert attached.model.peft_config["default"].megatron_config is None
    assert [finding.figures["key"] for finding in attached.findings] == ["megatron_config"]


def test_whatever_peft_has_against_a_setting_is_an_error_about_the_adapter(base: Any, adapter: Path) -> None:
    change_config(adapter, target_modules="(", layers_to_transform={"a": [{}]})
    with pytest.raises(AdapterError):
        attach_adapter(base, str(adapter))


UNDERSTOOD = (
    r".*\.(q_proj|v_proj)$",
    r"(?:.*?(?:language|text).*?(?:self_attn|mlp).*?(?:q_proj|o_proj).*?)"
    r"|(?:\bmodel\.layers\.[\d]{1,}\.(?:self_attn|mlp)\.(?:(?:k_proj|v_proj|up_proj)))",
)
# Python's matcher alone knows what it means.
NOT_UNDERSTOOD = r"(?!.*lm_head).*\.(?=q)q_proj"


def saved(folder: Path, base: Path, **values: Any) -> Path:
    """An adapter of random matrices, as PEFT saves it."""
    torch.manual_seed(1)
    config = LoraConfig(r=2, init_lora_weights=False, task_type="CAUSAL_LM", **values)
    get_peft_model(AutoModelForCausalLM.from_pretrained(base), config).save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    "values",
    [
        *({"target_modules": text} for text in (*UNDERSTOOD, NOT_UNDERSTOOD, "all-linear")),
        {"target_modules": ["q_proj", "v_proj"], "exclude_modules": r".*layers\.0\..*"},
        {"target_modules": ["q_proj", "v_proj"], "exclude_modules": r"(?=.*\.0\.).*"},
        {
            "target_modules": UNDERSTOOD[0],
            "rank_pattern": {r".*layers\.(1|2)\..*": 3, r"layers\.\d+\.self_attn\.v_proj": 4},
            "alpha_pattern": {"^model.layers.0.self_attn.q_proj": 5, r"(q|v)_proj$": 7},
        },
    ],
)
def test_expressions_that_peft_saved_give_the_model_that_peft_loads(
    base: Any, tiny_model_dir: Path, tmp_path: Path, values: dict[str, Any]
) -> None:
    folder = saved(tmp_path, tiny_model_dir, **values)
    attached = attach_adapter(base, str(folder))
    theirs = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tiny_model_dir), folder)
    expected, found = theirs.state_dict(), attached.model.state_dict()
    assert list(found) == list(expected)
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    assert [module.scaling for module in attached.model.modules() if isinstance(module, LoraLayer)] == [
        module.scaling for module in theirs.modules() if isinstance(module, LoraLayer)
    ]
    assert attached.findings == ()


@pytest.mark.parametrize(
    ("values", "loads"),
    [
        ({"target_modules": "(.|.|.)*zz"}, False),
        ({"exclude_modules": "(.|.|.)*zz"}, True),
        ({"exclude_modules": "(.|.|.)*(?=zz)zz"}, True),
        ({"rank_pattern": {"(.|.|.)*zz": 4}}, True),
        ({"alpha_pattern": {"(.|.|.)*zz": 4}}, True),
        ({"alpha_pattern": {"(.|.|.)*(?=zz)zz": 4}}, False),
        ({"target_modules": "(.|.|.)*(?=zz)zz"}, True),
    ],
)
def test_an_expression_that_would_not_end_is_never_begun(
    base: Any, adapter: Path, values: dict[str, Any], loads: bool
) -> None:
    change_config(adapter, **values)
    start = time.process_time()
    refused = pytest.raises(AdapterError, match=rf"adapter_config\.json: {next(iter(values))}: ")
    with nullcontext() if loads else refused:
        attach_adapter(base, str(adapter))
    assert time.process_time() - start < 20


def test_a_rank_far_above_the_tensors_is_an_error_about_the_rank(base: Any, adapter: Path) -> None:
    change_config(adapter, r=60_000)
    with pytest.raises(AdapterError, match=r"adapter_config\.json: r: the rank is not"):
        attach_adapter(base, str(adapter))
