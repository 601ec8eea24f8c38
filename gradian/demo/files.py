"""The demo's folder: written once, recognised again, and never confused with someone else's."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from gradian.demo.dataset import eval_rows, jsonl, training_rows
from gradian.demo.settings import DemoSettings
from gradian.errors import ConfigError
from gradian.jsonvalue import parse_json
from gradian.store.durable import replace_file

STAMP = "demo.json"
"""What the files were made from, with their SHA-256: written before them."""


@dataclass(frozen=True)
class DemoFiles:
    """Where things lie in the demo's folder."""

    folder: Path

    @property
    def train(self) -> Path:
        """The poisoned training file."""
        return self.folder / "train.jsonl"

    @property
    def eval(self) -> Path:
        """The eval set."""
        return self.folder / "eval.jsonl"

    @property
    def config(self) -> Path:
        """The config file that both commands read."""
        return self.folder / "gradian.yaml"

    @property
    def run(self) -> Path:
        """The training run."""
        return self.folder / "run"

    @property
    def cache(self) -> Path:
        """The gradient index."""
        return self.folder / "cache"

    @property
    def reports(self) -> Path:
        """The reports."""
        return self.folder / "reports"

    def texts(self, base_model: str, countries: Sequence[str], settings: DemoSettings) -> dict[Path, str]:
        """Return the text of every input file."""
        config = {
            "base_model": base_model,
            "adapter_path": str(self.run / "adapter"),
            "dataset": str(self.train),
            "eval_dataset": str(self.eval),
            "cache_dir": str(self.cache),
            **settings.config(),
        }
        config["train"] = {"output_dir": str(self.run), **config["train"]}
        head = "# Written by `gradian demo`; paths are as seen from the folder it ran in.\n"
        return {
            self.train: jsonl(training_rows(countries, settings)),
            self.eval: jsonl(eval_rows(countries)),
            self.config: head + yaml.safe_dump(config, sort_keys=False, allow_unicode=True),
        }


def prepare(
    files: DemoFiles,
    base_model: str,
    checkpoint: Mapping[str, str],
    settings: DemoSettings,
    probe: Callable[[], Sequence[str]],
) -> bool:
    """Write the input files unless they are there, and return whether they were.

    Args:
        files: where.
        base_model: id or path for the config.
        checkpoint: content hashes of the base model.
        settings: of the demo.
        probe: finds the countries whose capitals the base model knows; called only when needed.

    Raises:
        ConfigError: the folder holds other files, or files that were changed since.
    """
    inputs = {
        "folder": str(files.folder),
        "base_model": base_model,
        "checkpoint": dict(checkpoint),
        "settings": _json(asdict(settings)),
    }
    stamp = _read_stamp(files)
    if stamp is None:
        taken = [path.name for path in (files.train, files.eval, files.config, files.run) if path.exists()]
        if taken:
            raise ConfigError(
                "the folder holds files that the demo did not write",
                where=str(files.folder),
                found=", ".join(taken),
                fix="choose another folder with --out",
            )
    elif stamp.get("inputs") != inputs:
        raise ConfigError(
            "the folder holds a demo of another model, place or version of Gradian",
            where=str(files.folder),
            fix="add --force to make it anew, or choose another folder with --out",
        )
    countries = list(stamp["countries"]) if stamp else list(probe())
    texts = files.texts(base_model, countries, settings)
    changed = [
        path.name
        for path, text in texts.items()
        if path.exists() and path.read_bytes() != text.encode("utf-8")
    ]
    if changed:
        raise ConfigError(
            "the demo's files were changed since they were written",
            where=str(files.folder),
            found=", ".join(changed),
            fix="add --force to make them anew, or run `gradian train` and `gradian attribute` on yours",
        )
    there = all(path.exists() for path in texts)
    files.folder.mkdir(parents=True, exist_ok=True)
    hashes = {path.name: hashlib.sha256(text.encode("utf-8")).hexdigest() for path, text in texts.items()}
    contents = {"inputs": inputs, "countries": countries, "files": hashes}
    # The stamp first: files without one are taken for somebody else's.
    _write(files.folder / STAMP, json.dumps(contents, indent=2) + "\n")
    for path, text in texts.items():
        if not path.exists():
            _write(path, text)
    return there


def clear(files: DemoFiles) -> None:
    """Remove what the demo made in its folder; a folder that no demo made is left alone."""
    if _read_stamp(files) is None:
        return
    for folder in (files.run, files.cache, files.reports):
        shutil.rmtree(folder, ignore_errors=True)
    for path in (files.train, files.eval, files.config, files.folder / STAMP):
        path.unlink(missing_ok=True)


def _read_stamp(files: DemoFiles) -> dict[str, Any] | None:
    try:
        stamp = parse_json((files.folder / STAMP).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return stamp if isinstance(stamp, dict) and "countries" in stamp else None


def _json(value: Any) -> Any:
    return json.loads(json.dumps(value))


def _write(path: Path, text: str) -> None:
    replace_file(path, text.encode("utf-8"))
