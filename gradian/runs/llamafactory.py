"""A run of LLaMA-Factory: the YAML of its arguments, and the log that it keeps beside the trainer's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradian.jsonvalue import parse_json
from gradian.runs.artifact import LoraSettings
from gradian.runs.contents import Contents, Reading
from gradian.runs.files import JSON_LIMIT
from gradian.runs.scalars import as_bool, as_count, as_finite, as_int, as_text
from gradian.runs.settings import Key, Settings
from gradian.runs.trainer_state import TrainerState, parse_state
from gradian.runs.transformers_run import DEFAULTS as TRANSFORMERS_DEFAULTS
from gradian.runs.transformers_run import argument_settings, settings_of
from gradian.runs.yamlconfig import YamlConfig, config_above

_LOG = "trainer_log.jsonl"
# Lines of the log that a killed run left unfinished.
_MOST_BROKEN = 100
_TAGS = {"llama-factory", "llamafactory"}
_MARKS = ("cutoff_len", "finetuning_type", "lora_rank", "lora_target")
_KEYS = (
    Key("cutoff_len", "max_length", as_count),
    Key("packing", "packing", as_bool),
    Key("train_on_prompt", "train_on_inputs", as_bool),
    Key("enable_liger_kernel", "use_liger_kernel", as_bool),
)
_DEFAULT = "default of LLaMA-Factory"
_DEFAULTS = Settings.of(
    _DEFAULT, {"max_length": 2048, "overlong_rows": "truncate", "packing": False, "train_on_inputs": False}
).over(TRANSFORMERS_DEFAULTS)
_RANK = 8


def read(contents: Contents) -> Reading | None:
    """Read the arguments; None where nothing in the folder is LLaMA-Factory's."""
    config = next((entry for entry in contents.configs if is_config(entry.data)), None)
    ours = (
        config is not None
        or contents.files.has(_LOG)
        or contents.arguments_class.startswith("llamafactory.")
        or bool(_TAGS & {*contents.card.tags, *contents.card.versions})
    )
    if not ours:
        return None
    config = config or config_above(contents.files, is_config)
    settings = argument_settings(contents, _KEYS)
    log = None if contents.state else _log(contents)
    if config is None:
        return Reading(settings, state=log)
    base = as_text(config.data.get("model_name_or_path"))
    return Reading(
        settings.over(_settings(config)),
        defaults=_DEFAULTS,
        lora=_lora(config.data),
        base_model=(base, f"{config.file}: model_name_or_path") if base else None,
        state=log,
    )


def is_config(data: Mapping[str, Any]) -> bool:
    """Whether a mapping holds arguments of LLaMA-Factory."""
    return any(key in data for key in _MARKS)


def _settings(config: YamlConfig) -> Settings:
    file, data = config
    settings = settings_of(data, file, _KEYS).said()
    if as_bool(data.get("neat_packing")):
        neat = Settings.of(f"{file}: neat_packing", {"packing": True, "packing_strategy": "neat"})
        settings = neat.over(settings)
    if as_bool(data.get("pure_bf16")):
        settings = Settings.of(f"{file}: pure_bf16", {"bf16": True}).over(settings)
    bits = as_int(data.get("quantization_bit"))
    if bits is not None:
        settings = settings.over(Settings.of(f"{file}: quantization_bit", {"load_in_4bit": bits == 4}))
    return settings


def _lora(data: Mapping[str, Any]) -> LoraSettings | None:
    if data.get("finetuning_type", "lora") != "lora":
        return None
    rank = as_count(data.get("lora_rank")) or _RANK
    targets = data.get("lora_target") or "all"
    names = targets.split(",") if isinstance(targets, str) else targets
    listed = (
        tuple(sorted(name.strip() for name in names if isinstance(name, str)))
        if isinstance(names, list)
        else ()
    )
    return LoraSettings(
        r=rank,
        alpha=as_finite(data.get("lora_alpha")) or 2.0 * rank,
        dropout=as_finite(data.get("lora_dropout")) or 0.0,
        target_modules="all-linear" if listed == ("all",) else listed,
        use_rslora=as_bool(data.get("use_rslora")) or False,
        use_dora=as_bool(data.get("use_dora")) or False,
    )


def _log(contents: Contents) -> TrainerState | None:
    """Return the log in LLaMA-Factory's own file, whose rows have other names; None without it."""
    text = contents.files.text(_LOG, JSON_LIMIT)
    if text is None:
        return None
    rows: list[dict[str, Any]] = []
    total = None
    broken = 0
    for line in text.splitlines():
        if not line or line.isspace():
            continue
        try:
            row = parse_json(line)
        except ValueError:
            broken += 1
            if broken > _MOST_BROKEN:
                return None
            continue
        if isinstance(row, dict):
            total = as_int(row.get("total_steps")) or total
            rows.append(_row(row))
    steps = [row["step"] for row in rows if as_int(row.get("step")) is not None]
    return parse_state({"log_history": rows, "max_steps": total, "global_step": steps[-1] if steps else None})


def _row(row: Mapping[str, Any]) -> dict[str, Any]:
    names = {"current_steps": "step", "lr": "learning_rate"}
    kept = ("current_steps", "loss", "eval_loss", "lr", "learning_rate", "grad_norm", "epoch")
    return {names.get(key, key): row[key] for key in kept if key in row}
