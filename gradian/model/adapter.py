"""Putting a PEFT LoRA adapter on a base model, and refusing to go on with anything but all of it.

PEFT itself only warns when adapter tensors are missing or left over, and then goes on with random weights.
"""

from __future__ import annotations

import dataclasses
import re
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gradian.data.jsontext import excerpt
from gradian.errors import AdapterError
from gradian.jsonvalue import parse_json
from gradian.model.adapter_settings import check_ranks, check_settings, plain_keys
from gradian.model.checkpoint import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    adapter_folder,
    adapter_weights,
    other_adapters,
)
from gradian.model.lora import trained_parameters
from gradian.model.name_patterns import name_pattern
from gradian.runs.adapter_config import LORA_VARIANTS
from gradian.runs.base_names import full_precision, is_quantised
from gradian.runs.safetensors_header import read_header
from gradian.supported import SAFE_READERS, unsafe_reader
from gradian.types import Finding, Severity

_PREFIX = "base_model.model."
# These initialisations rewrite the base weights, so the saved A and B mean nothing without that step.
_REWRITES_BASE = ("pissa", "olora", "corda", "loftq")
# The last names a module, which PEFT imports, 0.18 whatever module it is.
_NOT_SETTINGS = {"peft_type", "auto_mapping", "runtime_config", "megatron_core"}
_LORA_TENSOR = re.compile(r"^(?P<module>.+?)\.lora_(?:A|B|embedding_A|embedding_B|magnitude_vector)\b")


@dataclass(frozen=True, eq=False)
class Attached:
    """A base model with its adapter on.

    Attributes:
        model: the PeftModel.
        base_values: the base's own values of parameters that the adapter file overwrites (trained biases,
            saved embeddings), by name in the PeftModel; to be put back when base scores are taken.
        findings: what the folder has to say.
    """

    model: Any
    base_values: Mapping[str, Tensor]
    findings: tuple[Finding, ...]


def _listed(names: Iterable[str], most: int = 5) -> str:
    names = list(names)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def read_adapter_config(folder: Path) -> dict[str, Any]:
    """Return an adapter's configuration as it stands in the file.

    Raises:
        AdapterError: the file is not JSON, a setting has a value that it cannot have, or the adapter is not a LoRA
            for a causal language model.
    """
    path = folder / ADAPTER_CONFIG
    try:
        raw = parse_json(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise AdapterError("cannot be read as JSON", where=str(path), found=str(error)) from None
    if not isinstance(raw, dict):
        raise AdapterError("is not a JSON object", where=str(path), found=type(raw).__name__)
    if raw.get("peft_type") != "LORA":
        raise AdapterError(
            "only LoRA adapters can be attributed",
            where=str(path),
            found=f"peft_type {raw.get('peft_type')!r}",
        )
    if raw.get("task_type") not in (None, "CAUSAL_LM"):
        raise AdapterError(
            "the adapter is not for a causal language model",
            where=str(path),
            found=f"task_type {raw['task_type']!r}",
            expected="CAUSAL_LM",
        )
    initialisation = raw.get("init_lora_weights")
    if isinstance(initialisation, str) and initialisation.startswith(_REWRITES_BASE):
        raise AdapterError(
            "the adapter only fits a base model whose weights its initialisation rewrote",
            where=str(path),
            found=f"init_lora_weights {initialisation!r}",
            fix="convert it to a plain LoRA (PEFT: save_pretrained(..., path_initial_model_for_weight_conversion=...))",
        )
    check_settings(raw, path)
    return raw


def read_adapter_tensors(folder: Path) -> dict[str, Tensor]:
    """Return an adapter's tensors by their names in the file, on the CPU; a pickle is read as tensors only.

    Raises:
        AdapterError: the file cannot be read, holds something else than tensors, or a NaN or an infinity.
    """
    path = adapter_weights(folder)
    if path.suffix != ".safetensors" and (unsafe := unsafe_reader("torch")):
        raise AdapterError(
            f"the weights are a pickle, and {unsafe} may run what is in it",
            where=str(path),
            fix=f"convert it to safetensors, or install torch {SAFE_READERS['torch']} or later",
        )
    tensors: Any
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            # First by our own eyes: of a name given twice the library takes the last.
            with path.open("rb") as file:
                read_header(file, path.stat().st_size)
            tensors = load_file(path)
        else:
            tensors = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # noqa: BLE001 - safetensors and pickle raise many kinds, all meaning this
        raise AdapterError(
            "the adapter's weights cannot be read",
            where=str(path),
            found=(str(error).splitlines() or [type(error).__name__])[0],
            fix="copy the file again; convert a pickle to safetensors if it holds more than tensors",
        ) from None
    if not isinstance(tensors, dict) or not all(isinstance(value, Tensor) for value in tensors.values()):
        raise AdapterError("the adapter's weights are not a table of tensors", where=str(path))
    broken = [name for name, value in tensors.items() if not bool(torch.isfinite(value).all())]
    if broken:
        raise AdapterError(
            f"{len(broken)} of {len(tensors)} adapter tensors hold NaN or infinity",
            where=str(path),
            found=_listed(broken),
            fix="the fine-tune diverged: use an earlier checkpoint",
        )
    return tensors


def _peft_config(raw: Mapping[str, Any], folder: Path) -> tuple[Any, list[Finding]]:
    """Build the LoraConfig, with a finding for each option that is set and not understood.

    Such an option is left out. Where it changes the tensors, they then do not fit, which is an error later.
    """
    from peft import LoraConfig

    known = {field.name for field in dataclasses.fields(LoraConfig)}
    strange = [key for key, value in raw.items() if value and (key in LORA_VARIANTS or key not in known)]
    findings = [
        Finding(
            id="model.unknown_adapter_option",
            severity=Severity.HIGH,
            title=f"The adapter sets {key!r}, which is not understood: its maths may differ",
            evidence=f"{folder / ADAPTER_CONFIG} was written by PEFT {raw.get('peft_version', 'unknown')}. "
            "The option was left out and the adapter read as a plain LoRA, which may not be what was trained.",
            fix="train without the option",
            figures={"key": key},
        )
        for key in strange
    ]
    settings = {key: raw[key] for key in raw if key in known - _NOT_SETTINGS and key not in strange}
    try:
        config = LoraConfig(**settings)
    except Exception as error:  # noqa: BLE001 - a faulty setting raises many kinds, all meaning this
        raise AdapterError(
            "PEFT refuses the configuration",
            where=str(folder / ADAPTER_CONFIG),
            found=str(error) or type(error).__name__,
            fix="copy the file again, or save the adapter again with PEFT",
        ) from None
    config.inference_mode = True
    return config, findings


def _tensor_modules(tensors: Iterable[str]) -> list[str]:
    """Return the base model's modules that adapter tensors belong to, in file order."""
    names = (_LORA_TENSOR.match(name.removeprefix(_PREFIX)) for name in tensors)
    return list(dict.fromkeys(match["module"] for match in names if match))


def _matching(target: str, modules: Iterable[str]) -> list[str]:
    return [module for module in modules if module == target or module.endswith(f".{target}")]


def _expressions_to_names(config: Any, base: nn.Module, names: list[str], modules: list[str]) -> None:
    """Leave PEFT no regular expression to match but the targets', which `_fit_targets` sees to."""
    # A rank may be that of a parameter without a module of its own, such as the experts of a layer.
    parameters = [name for name, _ in base.named_parameters()] if _target_parameters(config) else []
    config.rank_pattern = plain_keys(config.rank_pattern, [*modules, *parameters])
    config.alpha_pattern = plain_keys(config.alpha_pattern, [*modules, *parameters])
    excluded = getattr(config, "exclude_modules", None)
    if not isinstance(excluded, str):
        return
    pattern = name_pattern(excluded)
    config.exclude_modules = {name for name in names if pattern and pattern.fullmatch(name)} or None
    if pattern is None:
        config.target_modules = set(modules)
        config.layers_to_transform = config.layers_pattern = None


def _target_parameters(config: Any) -> Iterable[str]:
    return getattr(config, "target_parameters", None) or ()


def _targeted(config: Any, targets: str, modules: list[str], folder: Path) -> set[str]:
    """The modules with tensors that the expression means: all of them where it is not understood."""
    pattern = name_pattern(targets)
    parameters = _target_parameters(config)
    owners = {
        module
        for module in modules
        for parameter in parameters
        if _matching(parameter.rpartition(".")[0], [module.replace(".base_layer", "")])
    }
    chosen = {
        module for module in modules if (pattern.fullmatch(module) if pattern else module not in owners)
    }
    if not chosen and not parameters:
        raise AdapterError(
            "the expression matches no module that the adapter's tensors belong to",
            where=f"{folder / ADAPTER_CONFIG}: target_modules",
            found=excerpt(targets, 80),
            expected=f"one that matches {_listed(modules, 3)}" if modules else "tensors of LoRA matrices",
            fix="check that the configuration and the weights are those of one adapter",
        )
    return chosen


def _fit_targets(config: Any, base: nn.Module, tensors: Mapping[str, Tensor], folder: Path) -> list[Finding]:
    """Compare the configured targets with the tensors, and narrow them where training cannot have met them.

    A regular expression such as unsloth's matches layers that were never meant, and some versions of PEFT
    pass over a layer without a number under `layers_to_transform`. Any other layer without tensors stays, and
    is missed when the tensors load. PEFT is given the names of modules and never an expression: one from a
    file need not end.
    """
    modules = _tensor_modules(tensors)
    names = [name for name, _ in base.named_modules()]
    _expressions_to_names(config, base, names, modules)
    targets = config.target_modules
    idle: list[str] = []
    if isinstance(targets, str) and targets.lower() != "all-linear":
        config.target_modules = _targeted(config, targets, modules, folder)
        known = {*modules, *(config.exclude_modules or ())}
        pattern = name_pattern(targets)
        idle = [
            name
            for name, module in base.named_modules()
            if isinstance(module, nn.Linear) and name not in known and pattern and pattern.fullmatch(name)
        ]
    elif targets is not None and not isinstance(targets, str):
        idle = [target for target in sorted(targets) if not _matching(target, modules)]
        if config.layers_to_transform is not None:
            unnumbered = {
                target
                for target in idle
                if not any(re.search(r"\.\d+\.", name) for name in _matching(target, names))
            }
            config.target_modules = set(targets) - unnumbered
    return [
        Finding(
            id="model.target_without_tensor",
            severity=Severity.LOW,
            title=f"{len(idle)} target modules of the adapter have no tensor: {_listed(idle, 3)}",
            evidence=f"{folder / ADAPTER_CONFIG} targets them, but training put no LoRA there "
            "(PEFT skips a target that does not match, for instance under layers_to_transform).",
            fix="check target_modules if these layers were meant to be trained",
            figures={"targets": idle},
        )
    ] * bool(idle)


def _folder_findings(raw: Mapping[str, Any], folder: Path) -> list[Finding]:
    findings = []
    trained_on = str(raw.get("base_model_name_or_path") or "")
    if is_quantised(trained_on):
        full = full_precision(trained_on)
        findings.append(
            Finding(
                id="model.quantised_base",
                severity=Severity.LOW,
                title=f"The adapter was trained on a quantised base ({trained_on})",
                evidence="Gradients are taken on the base model given here, in full precision; they differ a "
                "little from those of the quantised model that was trained.",
                fix="pass the 16-bit model that the quantised one was made from as the base model"
                + (f", which the name says is {full}" if full != trained_on else ""),
                figures={"trained_on": trained_on},
            )
        )
    weights = [name for name in ADAPTER_WEIGHTS if (folder / name).is_file()]
    if len(weights) > 1:
        findings.append(
            Finding(
                id="model.two_weight_files",
                severity=Severity.LOW,
                title=f"The adapter's weights are there twice: {weights[0]} was read",
                evidence=f"{folder} also holds {weights[1]}, which was not opened and may differ.",
                fix=f"remove {weights[1]}, or move it elsewhere if it is the one that was meant",
                figures={"read": weights[0], "not_read": weights[1:]},
            )
        )
    others = [name for name in other_adapters(folder) if not name.startswith("checkpoint-")]
    if others:
        findings.append(
            Finding(
                id="model.other_adapters",
                severity=Severity.LOW,
                title=f"The folder holds further adapters that are not read: {_listed(others)}",
                evidence=f"Attributed is the adapter at the top of {folder}.",
                fix="pass a sub-folder to attribute that one",
                figures={"adapters": others},
            )
        )
    return findings


def attach_adapter(base: Any, adapter_path: str) -> Attached:
    """Put the adapter on `base` (which is changed) and check that every tensor found its place.

    Raises:
        AdapterError: the folder, its configuration or its tensors are not those of one complete LoRA
            adapter for this base model.
    """
    from peft import PeftModelForCausalLM, set_peft_model_state_dict

    folder = adapter_folder(adapter_path)
    raw = read_adapter_config(folder)
    tensors = read_adapter_tensors(folder)
    check_ranks(raw, (tensor.shape for tensor in tensors.values()), folder / ADAPTER_CONFIG)
    config, findings = _peft_config(raw, folder)
    findings += _fit_targets(config, base, tensors, folder)
    findings += _folder_findings(raw, folder)

    before = dict(base.state_dict())
    overwritten = {name.removeprefix(_PREFIX).replace(".base_layer", "") for name in tensors} & set(before)
    originals = {name: before[name].clone() for name in overwritten}
    del before
    weights = adapter_weights(folder)
    try:
        with warnings.catch_warnings():
            # PEFT 0.21 reads an attribute that transformers 5.24 deprecates.
            warnings.filterwarnings("ignore", ".*is_gradient_checkpointing.*", FutureWarning)
            model = PeftModelForCausalLM(base, config)
    except Exception as error:  # noqa: BLE001 - as above
        raise AdapterError(
            "PEFT cannot put the adapter on this base model",
            where=str(folder),
            found=(str(error).splitlines() or [type(error).__name__])[0],
            fix=f"check that the base model is the one the adapter was trained on, and the settings in {ADAPTER_CONFIG}",
        ) from None
    try:
        result = set_peft_model_state_dict(model, tensors)
    except (RuntimeError, KeyError) as error:
        lines = [line.strip() for line in str(error).splitlines() if "size mismatch" in line] or [str(error)]
        resized = any("embed" in line or "lm_head" in line for line in lines)
        raise AdapterError(
            "the adapter's tensors do not fit the base model",
            where=str(weights),
            found=_listed(lines, 3),
            fix="the vocabulary was resized for training: pass the resized base model"
            if resized
            else "check that the base model is the one the adapter was trained on",
        ) from None
    missing = sorted(set(result.missing_keys) & set(trained_parameters(model)))
    if missing or result.unexpected_keys:
        found = [f"missing: {_listed(missing)}"] * bool(missing)
        found += [f"unexpected: {_listed(result.unexpected_keys)}"] * bool(result.unexpected_keys)
        raise AdapterError(
            f"{len(missing)} adapter tensors are missing and {len(result.unexpected_keys)} have no place",
            where=str(weights),
            found="; ".join(found),
            expected=f"exactly the tensors that {ADAPTER_CONFIG} describes on this base model",
            fix="check that the base model is the one the adapter was trained on, and that the file is whole",
        )
    places = {name.removeprefix(_PREFIX).replace(".base_layer", ""): name for name in model.state_dict()}
    # A module under modules_to_save is not overwritten: PEFT keeps the tuned copy beside the original.
    base_values = {places[name]: value for name, value in originals.items() if name in places}
    return Attached(model, base_values, tuple(findings))
