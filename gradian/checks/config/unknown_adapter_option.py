"""The adapter sets an option that is not understood here.

What it detects
    adapter_config.json sets a key that the installed PEFT does not know, or one of the variants of LoRA whose
    gradients Gradian does not take (`use_bdlora`, `use_qalora`, `alora_invocation_tokens` and others). Keys
    that are null, false or empty are ignored.

Why it matters
    A newer PEFT can change what the adapter computes. Read as a plain LoRA, such an adapter may load and
    give other losses and gradients than the model that was trained.

What to do
    Install the PEFT that wrote the adapter (its version is in adapter_config.json), or train without the
    option.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from gradian.checks.audit import Audit
from gradian.checks.registry import CannotTell, Need, check
from gradian.checks.row_findings import excerpt
from gradian.runs.adapter_config import LORA_VARIANTS
from gradian.types import Finding, Severity

_CLASSES = {"LoraConfig", "PeftConfig", "PeftConfigMixin"}
_SOURCES = ("tuners/lora/config.py", "config.py")


@check(
    "config.unknown_adapter_option",
    "Adapter options that are set and not understood",
    needs=(Need.RUN,),
    addition=True,
)
def unknown_adapter_option(audit: Audit) -> Iterator[Finding]:
    """Compare the keys that are set with those that are known."""
    raw = audit.artifact.lora.raw if audit.artifact.lora else {}
    if not raw:
        raise CannotTell("no adapter_config.json was read")
    if raw.get("peft_type", "LORA") != "LORA":
        raise CannotTell(f"the adapter is of the type {excerpt(str(raw['peft_type']))}, not LoRA")
    known = known_options()
    peft = raw.get("peft_version")
    writer = (
        f"The adapter was written by PEFT {excerpt(str(peft))}."
        if peft
        else "The adapter does not say which PEFT wrote it."
    )
    for key in (key for key, value in raw.items() if value and (key in LORA_VARIANTS or key not in known)):
        why = (
            "It is a variant whose gradients are not taken here."
            if key in LORA_VARIANTS
            else f"PEFT {version('peft')}, installed here, does not know it."
        )
        yield Finding(
            "config.unknown_adapter_option",
            Severity.HIGH,
            f"The adapter sets {excerpt(key)}, which is not understood: its maths may differ",
            f"{why} {writer}",
            f"Train without {excerpt(key)}, or install the PEFT that wrote the adapter if it is a newer one.",
            figures={"key": key, "peft_version": peft},
        )


@lru_cache(maxsize=1)
def known_options() -> frozenset[str]:
    """The fields of PEFT's LoraConfig, read from its source: importing it would import torch.

    Raises:
        CannotTell: PEFT is not installed, or its source is not where it has always been.
    """
    try:
        version("peft")
        spec = importlib.util.find_spec("peft")
    except PackageNotFoundError:
        spec = None
    if spec is None or not spec.submodule_search_locations:
        raise CannotTell("PEFT is not installed, so the options it knows are not known")
    folder = Path(next(iter(spec.submodule_search_locations)))
    try:
        modules = [ast.parse((folder / name).read_text(encoding="utf-8")) for name in _SOURCES]
    except (OSError, SyntaxError) as error:
        raise CannotTell(f"PEFT's source could not be read ({type(error).__name__})") from None
    classes = (
        node
        for module in modules
        for node in module.body
        if isinstance(node, ast.ClassDef) and node.name in _CLASSES
    )
    return frozenset(
        statement.target.id
        for node in classes
        for statement in node.body
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
    )
