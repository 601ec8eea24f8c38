"""The base model with its adapter, ready for gradients: eval mode, everything frozen, no cache, no dropout."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gradian.config.schema import Config
from gradian.data.chat import ChatEncoder, load_tokenizer
from gradian.errors import AdapterError, ModelError
from gradian.model.adapter import attach_adapter
from gradian.model.checkpoint import base_folder, checkpoint_fingerprint
from gradian.supported import SAFE_READERS, unsafe_reader
from gradian.types import Finding

__all__ = [
    "LoadedModel",
    "checkpoint_fingerprint",
    "freeze_for_gradients",
    "load_model",
    "quiet_transformers",
    "read_model_config",
    "resolve_device",
    "resolve_dtype",
]


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """While active, transformers shows no progress bars of its own, nor warnings about names of its own that PEFT uses."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=FutureWarning, module=r"transformers\.")
            yield
    finally:
        if shown:
            logging.enable_progress_bar()


@dataclass(eq=False)
class LoadedModel:
    """A model in memory.

    Attributes:
        model: the PeftModel (or the base model alone); eval mode, every parameter frozen.
        tokenizer: its tokenizer.
        device: where it is.
        dtype: number format of the base weights.
        findings: what loading has to say.
        base_values: parameters of the base that the adapter overwrites, by name, with the base's values.
    """

    model: Any
    tokenizer: Any
    device: torch.device
    dtype: torch.dtype
    findings: tuple[Finding, ...] = ()
    base_values: Mapping[str, Tensor] = field(default_factory=dict)

    def encoder(self, max_seq_length: int) -> ChatEncoder:
        """Return an encoder for this model's tokenizer that cuts rows to `max_seq_length` tokens."""
        return ChatEncoder(self.tokenizer, max_seq_length)

    @contextmanager
    def adapter_disabled(self) -> Iterator[None]:
        """While active, the model computes exactly what the base model does."""
        parameters = {name: self.model.get_parameter(name) for name in self.base_values}
        tuned = {name: parameter.detach().clone() for name, parameter in parameters.items()}
        try:
            with self.model.disable_adapter(), torch.no_grad():
                for name, parameter in parameters.items():
                    parameter.copy_(self.base_values[name])
                with torch.enable_grad():
                    yield
        finally:
            with torch.no_grad():
                for name, parameter in parameters.items():
                    parameter.copy_(tuned[name])
            # PEFT marks the adapter trainable again when it switches it on.
            freeze_for_gradients(self.model)


def freeze_for_gradients(model: Any) -> None:
    """Put a model into the state that gradient capture needs; changes it in place.

    Eval mode (dropout off), every parameter frozen, and gradient checkpointing off. transformers checkpoints in
    training mode only, so in eval mode its flag saves no memory; switching the flag off keeps that true of model
    code that asks the flag alone, where a reentrant segment under frozen embeddings would have no gradient.
    """
    model.eval()
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    for module in model.modules():
        if getattr(module, "gradient_checkpointing", False):
            module.gradient_checkpointing = False


def resolve_device(config: Config) -> torch.device:
    """Return the device that `device` names; `auto` is CUDA when visible, else the CPU.

    Raises:
        ModelError: the named device is not there.
    """
    name = config.device
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    count = torch.cuda.device_count()
    there = {"cpu": True, "cuda": (device.index or 0) < count, "mps": torch.backends.mps.is_available()}
    if not there[device.type]:
        raise ModelError(
            "the device is not there",
            where="device",
            found=f"{name}; {count} CUDA devices are visible",
            fix="set device to cpu or auto",
        )
    return device


def resolve_dtype(config: Config, device: torch.device) -> torch.dtype:
    """Return the model's number format; `auto` is float32 on the CPU, the checkpoint's own elsewhere.

    Raises:
        ModelError: the checkpoint's configuration cannot be read.
    """
    if config.dtype != "auto":
        return {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}[config.dtype]
    if device.type == "cpu":
        return torch.float32
    settings = read_model_config(config)
    stored = getattr(settings, "dtype", None) or getattr(settings, "torch_dtype", None)
    return stored if isinstance(stored, torch.dtype) else torch.float32


def read_model_config(config: Config) -> Any:
    """Return the base model's transformers configuration.

    Raises:
        ModelError: it cannot be read.
    """
    from transformers import AutoConfig

    folder = base_folder(config.base_model)
    try:
        return AutoConfig.from_pretrained(folder, trust_remote_code=config.trust_remote_code)
    except Exception as error:  # noqa: BLE001 - a faulty configuration raises many kinds, all meaning this
        raise _cannot_load(config, error) from None


def _cannot_load(config: Config, error: Exception) -> ModelError:
    return ModelError(
        "transformers cannot load the base model",
        where=config.base_model,
        found=(str(error).splitlines() or [type(error).__name__])[0],
        fix="check that the folder is whole: fetch or copy the model again",
    )


def _dtype_argument(dtype: torch.dtype) -> dict[str, torch.dtype]:
    # transformers 4.56 renamed the argument and later deprecated the old name.
    import transformers

    major, minor = (int(part) for part in transformers.__version__.split(".")[:2])
    return {"dtype" if (major, minor) >= (4, 56) else "torch_dtype": dtype}


def _load_base(config: Config, dtype: torch.dtype) -> Any:
    from transformers import AutoModelForCausalLM

    folder = base_folder(config.base_model)
    if (unsafe := unsafe_reader("torch")) and not any(folder.glob("*.safetensors")):
        raise ModelError(
            f"the weights are a pickle, and {unsafe} may run what is in it",
            where=str(folder),
            fix=f"convert them to safetensors, or install torch {SAFE_READERS['torch']} or later",
        )
    try:
        with quiet_transformers():
            model, info = AutoModelForCausalLM.from_pretrained(
                folder,
                trust_remote_code=config.trust_remote_code,
                attn_implementation=config.attn_implementation,
                output_loading_info=True,
                **_dtype_argument(dtype),
            )
    except Exception as error:  # noqa: BLE001 - so do faulty or refused weights
        raise _cannot_load(config, error) from None
    missing = sorted(info["missing_keys"])
    if missing:
        raise ModelError(
            f"{len(missing)} weights of the base model are not in its files and would be random",
            where=str(folder),
            found=", ".join(missing[:5]),
            fix="fetch the model again, or pass the model that config.json describes",
        )
    return model


def load_model(config: Config, *, adapter: bool = True) -> LoadedModel:
    """Load the base model, its adapter and its tokenizer.

    Args:
        config: `base_model`, `adapter_path`, `tokenizer`, `device`, `dtype`, `attn_implementation` and
            `trust_remote_code` are read.
        adapter: False leaves the adapter off, if there is one.

    Raises:
        ModelError: the base model, its tokenizer or the device.
        AdapterError: no adapter is given, or it does not load completely.
    """
    if adapter and config.adapter_path is None:
        raise AdapterError(
            "no adapter is given", where="adapter_path", fix="pass the PEFT adapter folder with --adapter"
        )
    device = resolve_device(config)
    dtype = resolve_dtype(config, device)
    tokenizer = load_tokenizer(config.tokenizer or config.base_model, config.trust_remote_code)
    model = _load_base(config, dtype)
    findings: tuple[Finding, ...] = ()
    base_values: Mapping[str, Tensor] = {}
    if adapter and config.adapter_path is not None:
        attached = attach_adapter(model, config.adapter_path)
        model, findings, base_values = attached.model, attached.findings, attached.base_values
    model.to(device)
    freeze_for_gradients(model)
    return LoadedModel(
        model=model,
        tokenizer=tokenizer,
        device=device,
        dtype=dtype,
        findings=findings,
        base_values={name: value.to(device) for name, value in base_values.items()},
    )
