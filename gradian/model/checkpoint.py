"""Where a checkpoint's files are, and what they contain, without loading them."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

from gradian.errors import AdapterError, ModelError

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
# What transformers reads to build and fill a model; tokenizers have their own fingerprint.
_MODEL_FILES = ("*.json", "*.safetensors", "*.bin", "*.py")
_HUB_FILES = (*_MODEL_FILES, "*.model", "*.txt", "*.jinja")
_WEIGHT_SUFFIXES = (".safetensors", ".bin")
_READ_BYTES = 1 << 22
_NUMBERED = re.compile(r"(?:\A|-)([0-9]+)\Z")


def _looks_like_path(name: str) -> bool:
    return name.startswith((".", "/", "~", "\\")) or name.count("/") > 1


def _has_weights(folder: Path, names: tuple[str, ...] | None = None) -> bool:
    if names is not None:
        return any((folder / name).is_file() for name in names)
    return any(path.suffix in _WEIGHT_SUFFIXES for path in folder.iterdir())


def _from_hub(name: str, config_name: str, weights: tuple[str, ...] | None) -> Path:
    """Return the snapshot folder of a hub repository: the local cache first, then the network.

    Raises:
        OSError, ValueError: as huggingface_hub does (its errors are kinds of these).
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        folder = Path(snapshot_download(name, local_files_only=True, allow_patterns=list(_HUB_FILES)))
        if (folder / config_name).is_file() and _has_weights(folder, weights):
            return folder
    except LocalEntryNotFoundError:
        pass
    return Path(snapshot_download(name, allow_patterns=list(_HUB_FILES)))


def _local_folder(name: str) -> Path | None:
    # These functions take what no path can be for what is not there.
    local = Path(os.path.expanduser(name))
    return local if os.path.isdir(local) else None


def absolute_name(base_model: str) -> str:
    """Return a name that loads from any working folder: a local folder's absolute path, any other name as it is."""
    local = _local_folder(base_model)
    return base_model if local is None else str(local.resolve())


def base_folder(base_model: str) -> Path:
    """Return the folder of a base model: a local one, or its snapshot in the hub cache.

    Raises:
        ModelError: there is no such folder and no such repository in reach.
    """
    if not base_model:
        raise ModelError(
            "no base model is given", where="base_model", fix="pass --base-model FOLDER, or a Hugging Face id"
        )
    local = _local_folder(base_model)
    if local is not None:
        folder = local
    elif _looks_like_path(base_model):
        raise ModelError("there is no such folder", where=base_model, fix="check the path to the base model")
    else:
        try:
            folder = _from_hub(base_model, "config.json", None)
        except (OSError, ValueError) as error:
            raise ModelError(
                "the base model is neither a folder nor in the local hub cache, and cannot be fetched",
                where=base_model,
                found=(str(error).splitlines() or [type(error).__name__])[0],
                fix="pass the path of a local folder, or fetch it once where there is a network",
            ) from None
    if not (folder / "config.json").is_file():
        hint = (
            " (this folder is an adapter: pass it with --adapter)"
            if (folder / ADAPTER_CONFIG).is_file()
            else ""
        )
        raise ModelError("the folder holds no model", where=str(folder), expected=f"a config.json{hint}")
    return folder


def adapter_folder(adapter_path: str) -> Path:
    """Return the folder of one adapter: a local one, or its snapshot in the hub cache.

    Raises:
        AdapterError: there is none, or the folder holds several and none at its top.
    """
    local = _local_folder(adapter_path)
    if local is not None:
        folder = local
    elif _looks_like_path(adapter_path):
        raise AdapterError("there is no such folder", where=adapter_path, fix="check the path to the adapter")
    else:
        try:
            folder = _from_hub(adapter_path, ADAPTER_CONFIG, ADAPTER_WEIGHTS)
        except (OSError, ValueError) as error:
            raise AdapterError(
                "the adapter is neither a folder nor in the local hub cache, and cannot be fetched",
                where=adapter_path,
                found=(str(error).splitlines() or [type(error).__name__])[0],
            ) from None
    if (folder / ADAPTER_CONFIG).is_file():
        return folder
    inside = other_adapters(folder)
    if inside:
        several = len(inside) > 1
        raise AdapterError(
            "the folder holds several adapters: which one?"
            if several
            else "the adapter is one folder deeper",
            where=str(folder),
            found=", ".join(inside),
            fix=f"pass one of them, such as {folder / inside[-1]}"
            if several
            else f"pass {folder / inside[0]}",
        )
    raise AdapterError("the folder holds no PEFT adapter", where=str(folder), expected=f"an {ADAPTER_CONFIG}")


def other_adapters(folder: Path) -> list[str]:
    """Return the names of the sub-folders that hold an adapter, checkpoints in the order of their steps."""

    def step(name: str) -> tuple[int, str]:
        numbered = _NUMBERED.search(name)
        return (int(numbered[1]) if numbered else -1, name)

    return sorted((path.parent.name for path in folder.glob(f"*/{ADAPTER_CONFIG}")), key=step)


def adapter_weights(folder: Path) -> Path:
    """Return the adapter's weight file, safetensors before pickle.

    Raises:
        AdapterError: there is none.
    """
    for name in ADAPTER_WEIGHTS:
        if (folder / name).is_file():
            return folder / name
    raise AdapterError(
        "the adapter folder holds no weights",
        where=str(folder),
        expected=f"one of {', '.join(ADAPTER_WEIGHTS)}",
    )


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_READ_BYTES):
            digest.update(block)
    return digest.hexdigest()


def _model_files(folder: Path) -> list[Path]:
    files = {path for pattern in _MODEL_FILES for path in folder.glob(pattern) if path.is_file()}
    if any(path.suffix == ".safetensors" for path in files):
        # transformers reads safetensors when there are any; a second copy of the weights is not an input.
        files = {path for path in files if path.suffix != ".bin"}
    # Tokenizer files have their own fingerprint (the encoder's); `tokenizer` may point elsewhere.
    ignored = (
        "tokenizer",
        "special_tokens",
        "vocab",
        "added_tokens",
        "merges",
        "chat_template",
        "trainer_state",
    )
    return sorted(path for path in files if not path.name.startswith(ignored))


def checkpoint_fingerprint(base_model: str, adapter_path: str | None) -> dict[str, str]:
    """Return the SHA-256 of every file that decides what the model computes, read as a stream.

    Args:
        base_model: folder or hub id.
        adapter_path: folder or hub id; None leaves the adapter out.

    Returns:
        Hex digests by `base/<file>` and `adapter/<file>`, in sorted order.

    Raises:
        ModelError, AdapterError: a folder cannot be found.
    """
    base = base_folder(base_model)
    prints = {f"base/{path.name}": _sha256(path) for path in _model_files(base)}
    if adapter_path is not None:
        folder = adapter_folder(adapter_path)
        for path in (folder / ADAPTER_CONFIG, adapter_weights(folder)):
            prints[f"adapter/{path.name}"] = _sha256(path)
    return dict(sorted(prints.items()))
