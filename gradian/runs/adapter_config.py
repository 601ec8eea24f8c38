"""The adapter's settings and the outline of its weights, from which no tensor is loaded."""

from __future__ import annotations

import mmap
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gradian.runs.artifact import LoraSettings
from gradian.runs.files import MEBIBYTE, RunFiles
from gradian.runs.safetensors_header import read_header
from gradian.runs.scalars import as_bool, as_count, as_finite, as_text

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
PICKLED_WEIGHTS = "adapter_model.bin"
# Options under which PEFT computes something else than B A x; gradients of them are not held by a test.
LORA_VARIANTS = frozenset(
    {
        "alora_invocation_tokens",
        "arrow_config",
        "kasa_config",
        "megatron_config",
        "monteclora_config",
        "use_bdlora",
        "use_qalora",
        "velora_config",
    }
)
_CONFIG_LIMIT = 16 * MEBIBYTE
_PREFIX = "base_model.model."
_MATRIX = re.compile(r"(?P<module>.+)\.lora_(?:embedding_)?(?P<side>[AB])(?:\..+)?", re.DOTALL)
# Everything but the sign bit, by bytes an element: minus zero is zero too.
_MAGNITUDE: Mapping[int, tuple[Any, int]] = {
    1: (np.dtype("u1"), 0x7F),
    2: (np.dtype("<u2"), 0x7FFF),
    4: (np.dtype("<u4"), 0x7FFFFFFF),
    8: (np.dtype("<u8"), 0x7FFFFFFFFFFFFFFF),
}
_ELEMENT_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1}
# Weights that are not zero show it in their first values.
_GLANCE = 1 << 16


@dataclass(frozen=True)
class Outline:
    """What the header of the weights and the bytes of `lora_B` say; see `LoraSettings`."""

    n_parameters: int
    n_modules: int
    zero_b: tuple[str, ...]


def read_lora(files: RunFiles, folder: str) -> LoraSettings | None:
    """Return the adapter in a folder; None where it has no configuration that can be read.

    Args:
        files: the run's files.
        folder: the adapter's folder, relative to the run's; "" for the run's own.
    """
    prefix = f"{folder}/" if folder else ""
    raw = files.json(prefix + CONFIG, _CONFIG_LIMIT)
    outline = _outline(files, prefix)
    return None if raw is None else adapter_settings(raw, outline)


def adapter_settings(raw: Mapping[str, Any], outline: Outline | None = None) -> LoraSettings:
    """Return the settings in an `adapter_config.json`, with what the weights add where they were read."""
    targets = raw.get("target_modules")
    saved = raw.get("modules_to_save")
    return LoraSettings(
        r=as_count(raw.get("r")),
        alpha=as_finite(raw.get("lora_alpha")),
        dropout=as_finite(raw.get("lora_dropout")),
        target_modules=_names(targets) if isinstance(targets, list) else as_text(targets),
        use_rslora=as_bool(raw.get("use_rslora")) or False,
        use_dora=as_bool(raw.get("use_dora")) or False,
        bias=as_text(raw.get("bias")) or "none",
        modules_to_save=_names(saved) if isinstance(saved, list) else (),
        n_parameters=outline.n_parameters if outline else None,
        n_modules=outline.n_modules if outline else None,
        zero_b=outline.zero_b if outline else (),
        raw=dict(raw),
    )


def _names(values: list[Any]) -> tuple[str, ...]:
    # PEFT writes a set, so that the order says nothing.
    return tuple(sorted(value for value in values if isinstance(value, str)))


def _outline(files: RunFiles, prefix: str) -> Outline | None:
    name = prefix + WEIGHTS
    path = files.regular(name)
    if path is None:
        if not files.has(name) and files.has(prefix + PICKLED_WEIGHTS):
            files.refuse(
                prefix + PICKLED_WEIGHTS,
                "a pickle, which is not opened: its size and zero matrices are unknown",
            )
        return None
    try:
        return _scan(path)
    except (ValueError, OSError) as error:
        files.refuse(name, f"not a safetensors file: {str(error)[:120]}")
        return None


def _scan(path: Path) -> Outline:
    with path.open("rb") as file:
        tensors = read_header(file, os.fstat(file.fileno()).st_size)
        modules: set[str] = set()
        zero: list[str] = []
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            for name, tensor in tensors.items():
                match = _MATRIX.fullmatch(name)
                if match is None:
                    continue
                module = match["module"].removeprefix(_PREFIX)
                modules.add(module)
                if match["side"] == "B" and _all_zero(data, tensor.begin, tensor.end, tensor.dtype):
                    zero.append(module)
    n_parameters = sum(tensor.size for tensor in tensors.values())
    return Outline(n_parameters, len(modules), tuple(sorted(zero)))


def _all_zero(data: mmap.mmap, begin: int, end: int, dtype: str) -> bool:
    width = _ELEMENT_BYTES.get(dtype)
    if width is None or end == begin or (end - begin) % width:
        return False
    kind, magnitude = _MAGNITUDE[width]
    for low in range(begin, end, _GLANCE):
        values = np.frombuffer(data[low : min(low + _GLANCE, end)], dtype=kind)
        if np.any(values & kind.type(magnitude)):
            return False
    return True
