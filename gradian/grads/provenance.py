"""What an index is made from: every input whose change changes a number, and so the index id."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from gradian import __version__
from gradian.config import Config

# The libraries through whose code a gradient passes.
LIBRARIES = ("torch", "transformers", "peft", "tokenizers", "safetensors", "numpy")


def library_versions() -> dict[str, str]:
    """Versions of Gradian, of the libraries behind a number and of Python's packages for them."""
    found = {"gradian": __version__}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def index_inputs(
    config: Config,
    *,
    checkpoint: Mapping[str, str],
    tokenizer: str,
    dataset: str,
    n: int,
    device: str,
    dtype: str,
    skip_nonfinite: bool,
    ops: Mapping[str, str],
) -> dict[str, Any]:
    """Return the hashed inputs of an index, as JSON values.

    Args:
        config: settings; the whole `grads` section, the seed and the damping are taken from it.
        checkpoint: content hashes of the base model's and the adapter's files.
        tokenizer: fingerprint of the tokenizer and its chat template.
        dataset: hash of the dataset's content and order.
        n: number of training examples.
        device: kind of device ("cpu", "cuda"): its arithmetic differs in the last bits.
        dtype: number format of the loaded model, resolved.
        skip_nonfinite: whether rows that are not finite are stored as zeros.
        ops: which implementation each operation uses.
    """
    return {
        "checkpoint": dict(checkpoint),
        "tokenizer": tokenizer,
        "dataset": {"sha256": dataset, "n": n},
        "grads": config.grads.model_dump(mode="json"),
        "model": {"device": device, "dtype": dtype, "attn_implementation": config.attn_implementation},
        "skip_nonfinite": skip_nonfinite,
        "seed": config.seed,
        "damping": {
            "lambda_scale": config.engine.lambda_scale,
            "lambda_override": config.engine.lambda_override,
        },
        "ops": dict(ops),
        "versions": library_versions(),
    }
