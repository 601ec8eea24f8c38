"""The `unsloth` backend: a model that unsloth's FastLanguageModel builds, trained on rows that Gradian encoded.

unsloth is fast because it replaces code of transformers and PEFT. `FastLanguageModel.from_pretrained` binds fast
`forward` functions to their classes for the whole process, and those read attributes that only models built by unsloth
have: a plain model built later fails with "'LlamaAttention' object has no attribute 'apply_qkv'". So what the classes
were is kept before, and put back when training ends, however it ends. What `import unsloth` alone changes stays.

The trainer is transformers' own with the collator of the hf backend, so the mask is the one that attribution uses.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Trainer, TrainingArguments

from gradian.data.chat import load_tokenizer
from gradian.errors import ConfigError, MissingExtraError, ModelError
from gradian.model.backends.base import BACKENDS, TrainingJob, TrainingOutcome
from gradian.model.backends.obstacles import INSTALL_UNSLOTH, unavailable
from gradian.model.backends.trainer import (
    Collator,
    Watch,
    padding_id,
    seeded,
    train_and_save,
    training_arguments,
)
from gradian.model.checkpoint import base_folder
from gradian.model.context import configured_positions
from gradian.model.load import freeze_for_gradients, read_model_config, resolve_device, resolve_dtype
from gradian.supported import installed_version

# Where unsloth replaces code: the modules whose classes and functions are kept and put back.
_PATCHED_MODULES = (
    "transformers.models.",
    "transformers.modeling_",
    "transformers.generation.",
    "transformers.trainer",
    "peft.",
)
_KEPT_LOGITS: Mapping[str, str] = {"UNSLOTH_RETURN_LOGITS": "1", "UNSLOTH_RETURN_HIDDEN_STATES": "0"}
"""Under these a forward pass ends in logits: no loss that is fused with the head, no hidden states in their place."""
_FUSED_ATTENTION = ("apply_qkv", "apply_o")


class UnslothBackend:
    """unsloth.FastLanguageModel; needs `unsloth` and a CUDA device."""

    @property
    def unavailable(self) -> str | None:
        """Why it cannot run here, or None."""
        return unavailable("unsloth")

    def fit(self, job: TrainingJob) -> TrainingOutcome:
        """Train and write the files, and leave the classes of transformers and PEFT as they were.

        Raises:
            ConfigError: a setting that unsloth cannot follow, or an argument that the Trainer does not take.
            MissingExtraError: unsloth cannot be imported.
            ModelError: unsloth cannot build the model.
            RunError: the adapter is no longer finite.
        """
        config = job.config
        device = resolve_device(config)
        if device.type == "cpu" and torch.cuda.is_available():
            raise ConfigError("unsloth trains on a CUDA device", where="device", fix="set it to cuda or auto")
        tokenizer = load_tokenizer(config.tokenizer or config.base_model, config.trust_remote_code)
        dtype = resolve_dtype(config, device)
        # It prints a banner, and standard output is the command's result.
        with redirect_stdout(sys.stderr), seeded(config.seed):
            unsloth = _unsloth()
            with _environment_kept(), _modeling_forwards_kept(job):
                model = _build(unsloth.FastLanguageModel, job, device, dtype)
                watch = Watch(job, model)
                trainer = Trainer(
                    model=model,
                    args=training_arguments(job, device, TrainingArguments, _precision(model, device)),
                    train_dataset=list(job.encoded),
                    data_collator=Collator(padding_id(tokenizer)),
                    callbacks=[watch],
                )
                return train_and_save(job, model, trainer, watch)


BACKENDS.register("unsloth")(UnslothBackend())


def _unsloth() -> Any:
    try:
        with warnings.catch_warnings():
            # It would rather come before transformers, which is here already; what that costs is speed.
            warnings.filterwarnings("ignore", message="(?s).*Unsloth should be imported before")
            import unsloth
    except (ImportError, NotImplementedError, RuntimeError) as error:
        raise MissingExtraError(
            "unsloth cannot be imported", found=" ".join(str(error).split()), fix=INSTALL_UNSLOTH
        ) from None
    return unsloth


def _build(fast: Any, job: TrainingJob, device: torch.device, dtype: torch.dtype) -> Any:
    config, settings = job.config, job.config.train
    try:
        model, _ = fast.from_pretrained(
            # A folder and not a name: names are mapped to unsloth's own copies, which may be quantised.
            model_name=str(base_folder(config.base_model)),
            use_exact_model_name=True,
            max_seq_length=_sequence_limit(job),
            dtype=dtype,
            load_in_4bit=settings.load_in_4bit,
            device_map={"": f"cuda:{device.index or 0}" if device.type == "cuda" else str(device)},
            trust_remote_code=config.trust_remote_code,
            use_gradient_checkpointing=False,
        )
        model = fast.get_peft_model(
            model,
            r=settings.r,
            lora_alpha=settings.lora_alpha,
            lora_dropout=settings.lora_dropout,
            # It knows no "all-linear".
            target_modules=settings.target_modules or _linear_layers(model),
            use_gradient_checkpointing=False,
            random_state=config.seed,
        )
    except (ImportError, NotImplementedError, OSError, RuntimeError, TypeError, ValueError) as error:
        raise ModelError(
            "unsloth cannot build the model",
            where=config.base_model,
            found=" ".join(str(error).split()) or type(error).__name__,
            fix="train with the backend hf",
        ) from None
    fast.for_training(model, use_gradient_checkpointing=False)
    model.peft_config["default"].base_model_name_or_path = job.base_model
    model.config.use_cache = False
    return model


def _sequence_limit(job: TrainingJob) -> int:
    # Beyond the model's own positions unsloth stretches them, which is another base model than the one that attribution
    # loads; and longer rows than the limit it cuts without their labels.
    positions = configured_positions(read_model_config(job.config))
    longest = max(len(row) for row in job.encoded)
    if positions is not None and longest > positions:
        raise ConfigError(
            "unsloth would stretch the model's positions to fit the longest row",
            where="train.max_seq_length",
            found=f"a row of {longest} tokens, {positions} positions",
            fix=f"set it to {positions} or less",
        )
    limit = job.config.train.max_seq_length
    return limit if positions is None else min(limit, positions)


def _linear_layers(model: Any) -> list[str]:
    head = model.get_output_embeddings()
    return sorted(
        {
            name.rpartition(".")[2]
            for name, module in model.named_modules()
            if isinstance(module, nn.Linear) and module is not head
        }
    )


def _precision(model: Any, device: torch.device) -> dict[str, bool]:
    # As unsloth's own examples do: its kernels want autocast beside a half precision base. Of the model and not of the
    # settings, because it takes float16 where the GPU has no bfloat16.
    dtype = model.get_input_embeddings().weight.dtype if device.type == "cuda" else None
    return {"bf16": dtype == torch.bfloat16, "fp16": dtype == torch.float16}


@contextmanager
def _environment_kept() -> Iterator[None]:
    before = {name: value for name, value in os.environ.items() if name.startswith("UNSLOTH_")}
    # Every load would be counted by a download from the Hub.
    os.environ.setdefault("UNSLOTH_DISABLE_STATISTICS", "1")
    try:
        yield
    finally:
        for name in [name for name in os.environ if name.startswith("UNSLOTH_")]:
            del os.environ[name]
        os.environ.update(before)


@dataclass(frozen=True, eq=False)
class ForwardSnapshot:
    """What the classes and functions of transformers and PEFT were at one moment.

    Attributes:
        methods: by class, its own functions by name; `forward` is one of them.
        names: by module, the classes and functions that its names stood for.
    """

    methods: Mapping[type, Mapping[str, Any]]
    names: Mapping[ModuleType, Mapping[str, Any]]


def _snapshot_modeling_forwards() -> ForwardSnapshot:
    """Return what `_restore_modeling_forwards` puts back; take it before a model is built with unsloth.

    Only modules that are imported already are in it: import the base model's modeling module first.
    """
    methods: dict[type, Mapping[str, Any]] = {}
    names: dict[ModuleType, Mapping[str, Any]] = {}
    for name, module in list(sys.modules.items()):
        if not name.startswith(_PATCHED_MODULES) or not isinstance(module, ModuleType):
            continue
        kept = {key: value for key, value in vars(module).items() if isinstance(value, type | FunctionType)}
        names[module] = kept
        for value in kept.values():
            if isinstance(value, type) and value.__module__ == name:
                methods[value] = _functions(value)
    return ForwardSnapshot(methods, names)


def _restore_modeling_forwards(snapshot: ForwardSnapshot) -> None:
    """Put back what a snapshot holds, so that plain transformers builds plain models again.

    A model that unsloth built does not run afterwards.
    """
    for module, names in snapshot.names.items():
        for name, value in names.items():
            if vars(module).get(name) is not value:
                setattr(module, name, value)
    for owner, methods in snapshot.methods.items():
        for name in _functions(owner).keys() - methods.keys():
            delattr(owner, name)
        for name, value in methods.items():
            if vars(owner).get(name) is not value:
                setattr(owner, name, value)


def _functions(owner: type) -> dict[str, Any]:
    kinds = (FunctionType, staticmethod, classmethod, property)
    return {name: value for name, value in vars(owner).items() if isinstance(value, kinds)}


@contextmanager
def _modeling_forwards_kept(job: TrainingJob) -> Iterator[None]:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    # Looking the class up imports its module, which a snapshot has to see.
    MODEL_FOR_CAUSAL_LM_MAPPING.get(type(read_model_config(job.config)), None)
    snapshot = _snapshot_modeling_forwards()
    try:
        yield
    finally:
        _restore_modeling_forwards(snapshot)


def prepare_for_gradients(model: Any) -> None:
    """Put a model that unsloth built into the state that gradient capture needs; changes it in place.

    As `gradian.model.load.freeze_for_gradients` does, and beyond it: no loss fused with the head (the logits are
    asked for in the environment, for the process), no key-value cache, nothing left of generation (its flags, and
    tensors that were made in inference mode), and the adapter computed by PEFT's own layers. unsloth's fused LoRA
    kernels read the adapter's weights past the modules whose inputs and gradients are captured.
    """
    os.environ.update(_KEPT_LOGITS)
    for module in model.modules():
        if "_flag_for_generation" in vars(module):
            del module._flag_for_generation
        _leave_inference_mode(module)
        _unfuse_lora(module)
    for config in _configs(model):
        config.use_cache = False
    freeze_for_gradients(model)


def _leave_inference_mode(module: nn.Module) -> None:
    # Such a tensor cannot be kept for a backward pass; a copy that is made outside of that mode can.
    for name, parameter in list(module._parameters.items()):
        if parameter is not None and parameter.is_inference():
            module._parameters[name] = nn.Parameter(parameter.detach().clone(), requires_grad=False)
    for name, buffer in list(module._buffers.items()):
        if buffer is not None and buffer.is_inference():
            module._buffers[name] = buffer.clone()
    # The rotary embeddings keep their tables as plain attributes, one for each device.
    for name, value in list(vars(module).items()):
        if isinstance(value, Tensor) and value.is_inference():
            setattr(module, name, value.clone())
        elif isinstance(value, list) and any(_is_inference(item) for item in value):
            setattr(module, name, [item.clone() if _is_inference(item) else item for item in value])


def _is_inference(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_inference()


def _unfuse_lora(module: nn.Module) -> None:
    for name in _FUSED_ATTENTION:
        if _is_fused(vars(module).get(name)):
            from unsloth.models import llama

            setattr(module, name, getattr(llama, f"original_{name}"))
    if _is_fused(vars(module).get("forward")):
        del module.forward


def _is_fused(value: Any) -> bool:
    # A function of unsloth's kernels, bound to a module or with arguments filled in.
    function = getattr(value, "__func__", value)
    function = getattr(function, "func", function)
    return str(getattr(function, "__module__", "")).startswith("unsloth.kernels")


def _configs(model: Any) -> list[Any]:
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    owned = (getattr(inner, name, None) for name in ("config", "generation_config"))
    configs = [config for config in owned if config is not None]
    text = [config.get_text_config() for config in configs if hasattr(config, "get_text_config")]
    return [*configs, *text]


def unsloth_compat_report(model: Any) -> dict[str, Any]:
    """Return the state of a model that decides whether its gradients are those that attribution means.

    Returns:
        JSON values: `unsloth`, `unsloth_zoo` (versions, or None), `fused_cross_entropy` (whether a forward pass may end
        without logits), `gradient_checkpointing` (modules that have it on), `use_cache`, `inference_mode` (modules that
        generate, or hold tensors made in that mode), `fused_lora` (modules whose adapter is computed past PEFT's
        layers), `training`, `trainable` (parameters that require a gradient), `rebound` (the model's classes whose
        `forward` comes from elsewhere, with where from: expected while the model is unsloth's), and
        `ready_for_gradients`: whether `prepare_for_gradients` has nothing left to do.
    """
    modules = dict(model.named_modules())
    state: dict[str, Any] = {
        "fused_cross_entropy": any(os.environ.get(k, "0") != wanted for k, wanted in _KEPT_LOGITS.items()),
        "gradient_checkpointing": [
            name for name, module in modules.items() if getattr(module, "gradient_checkpointing", False)
        ],
        "use_cache": any(getattr(config, "use_cache", False) for config in _configs(model)),
        "inference_mode": [name for name, module in modules.items() if _generates(module)],
        "fused_lora": [
            name
            for name, module in modules.items()
            if any(_is_fused(vars(module).get(key)) for key in (*_FUSED_ATTENTION, "forward"))
        ],
        "training": bool(model.training),
        "trainable": sum(parameter.requires_grad for parameter in model.parameters()),
    }
    return {
        "unsloth": installed_version("unsloth"),
        "unsloth_zoo": installed_version("unsloth_zoo"),
        **state,
        "rebound": _rebound(modules.values()),
        "ready_for_gradients": not any(state.values()),
    }


def _generates(module: nn.Module) -> bool:
    held = [*module._parameters.values(), *module._buffers.values()]
    for value in vars(module).values():
        held += value if isinstance(value, list) else [value]
    return "_flag_for_generation" in vars(module) or any(map(_is_inference, held))


def _rebound(modules: Iterable[nn.Module]) -> dict[str, str]:
    found = {}
    for owner in sorted({type(module) for module in modules}, key=lambda kind: kind.__qualname__):
        forward = vars(owner).get("forward")
        if isinstance(forward, FunctionType) and forward.__module__ != owner.__module__:
            found[f"{owner.__module__}.{owner.__qualname__}"] = f"{forward.__module__}.{forward.__qualname__}"
    return found
