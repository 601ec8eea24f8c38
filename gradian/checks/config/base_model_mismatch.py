"""The adapter was trained on another base model than the one given.

What it detects
    The base model that the adapter names and the one given with --base-model are different repositories. Hub
    cache folders, case, trailing slashes and bitsandbytes twins of one model are the same; the same name under
    another owner, mostly a mirror, is low. Of two local folders the architectures are compared. A local folder
    and a hub id with different names cannot be compared.

Why it matters
    A LoRA is a difference to the weights it was trained on. On a base of the same shape it loads without a
    word, and every loss, gradient and score is then of a model that nobody trained.

What to do
    Pass the base model that adapter_config.json names, and its base or instruct variant exactly.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gradian.checks.audit import Audit
from gradian.checks.registry import CannotTell, Need, check
from gradian.checks.row_findings import excerpt
from gradian.runs.base_names import is_path, repository
from gradian.runs.files import MEBIBYTE, RunFiles
from gradian.types import Finding, Severity

_CONFIG_LIMIT = 4 * MEBIBYTE
_SHAPE = (
    "model_type",
    "hidden_size",
    "num_hidden_layers",
    "intermediate_size",
    "num_attention_heads",
    "vocab_size",
)


@check("config.base_model_mismatch", "Adapter trained on a different base model", needs=(Need.RUN,))
def base_model_mismatch(audit: Audit) -> Iterator[Finding]:
    """Compare the two names, and for local folders what is in them."""
    trained, given = audit.artifact.base_model, audit.base_model
    if not trained:
        raise CannotTell("the run folder does not name the base model")
    if not given:
        raise CannotTell("needs --base-model, to compare it with the adapter's own")
    ours, theirs = repository(given), repository(trained)
    same_name = ours.rpartition("/")[2] == theirs.rpartition("/")[2]
    local = [_is_folder(name, known) for name, known in ((given, ours), (trained, theirs))]
    if ours == theirs or (same_name and (any(local) or "/" not in ours or "/" not in theirs)):
        return
    if any(local):
        differing = _differing_shape(Path(given), Path(trained)) if all(local) else None
        if differing is None:
            raise CannotTell("a local folder's name does not say which model it holds")
        if not differing:
            return
        evidence = f"Their config.json differ in {', '.join(differing)}."
    elif same_name:
        evidence = "The owners differ: it may be a mirror of the same weights, or a fork."
    else:
        evidence = "They are different repositories; equal shapes would load without an error."
    yield Finding(
        "config.base_model_mismatch",
        Severity.LOW if same_name and not any(local) else Severity.HIGH,
        f"The adapter was trained on {excerpt(trained)}, not on {excerpt(given)}",
        evidence,
        f"Pass --base-model {trained}.",
        figures={"trained_on": trained, "given": given},
    )


def _is_folder(name: str, known: str) -> bool:
    return (is_path(known) and "/" in known) or os.path.isdir(name)


def _differing_shape(one: Path, other: Path) -> list[str] | None:
    """The settings that shape a model and differ; None where a folder has no readable config."""
    configs = [_config(one), _config(other)]
    if not all(configs):
        return None
    return [key for key in _SHAPE if configs[0].get(key) != configs[1].get(key)]


def _config(folder: Path) -> dict[str, Any]:
    # One of the two paths is the adapter's own word, so that anything may lie there.
    return RunFiles(folder).json("config.json", _CONFIG_LIMIT) or {}
