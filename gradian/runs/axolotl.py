"""A run of axolotl: its YAML config, which the model card repeats, and the arguments that axolotl made of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradian.runs.artifact import LoraSettings
from gradian.runs.contents import Contents, Reading
from gradian.runs.files import MEBIBYTE
from gradian.runs.scalars import as_bool, as_bool_or_text, as_count, as_finite, as_float, as_int, as_text
from gradian.runs.settings import Key, Settings
from gradian.runs.transformers_run import DEFAULTS as TRANSFORMERS_DEFAULTS
from gradian.runs.transformers_run import argument_settings, warmup
from gradian.runs.yamlconfig import YamlConfig, config_above, log_config

_LOG = "debug.log"
_TOKENS = "tokens_state.json"
_MARKS = ("micro_batch_size", "sequence_len", "sample_packing", "lora_target_linear")
_KEYS = (
    Key("learning_rate", "learning_rate", as_finite),
    Key("num_epochs", "epochs", as_finite),
    Key("max_steps", "max_steps", as_count),
    Key("micro_batch_size", "per_device_batch", as_count),
    Key("gradient_accumulation_steps", "grad_accum", as_count),
    Key("lr_scheduler", "scheduler", as_text),
    Key("optimizer", "optimizer", as_text),
    Key("weight_decay", "weight_decay", as_finite),
    Key("max_grad_norm", "max_grad_norm", as_finite),
    Key("sequence_len", "max_length", as_count),
    Key(
        "excess_length_strategy",
        "overlong_rows",
        lambda value: value if value in ("drop", "truncate") else None,
    ),
    Key("sample_packing", "packing", as_bool),
    Key("batch_flattening", "padding_free", as_bool),
    Key("train_on_inputs", "train_on_inputs", as_bool),
    Key("seed", "seed", as_int),
    Key("bf16", "bf16", as_bool_or_text),
    Key("fp16", "fp16", as_bool),
    Key("load_in_4bit", "load_in_4bit", as_bool),
    Key("eval_strategy", "eval_strategy", as_text),
)
_DEFAULT = "default of axolotl"
_DEFAULTS = Settings.of(
    _DEFAULT,
    {
        "epochs": 1.0,
        "per_device_batch": 1,
        "grad_accum": 1,
        "max_length": 512,
        "overlong_rows": "drop",
        "packing": False,
        "train_on_inputs": False,
    },
)
_WARMUP_SHARE = 0.03
_MOST_WARMUP = 100
_LEAST_WARMUP = 2


def read(contents: Contents) -> Reading | None:
    """Read the config; None where nothing in the folder is axolotl's.

    The config is the model card's, one in the folder, one in the folder above, or the resolved one in `debug.log`.
    """
    own = _own_config(contents)
    log = _logged(contents)
    card = contents.card
    ours = (
        own is not None
        or bool(log)
        or contents.arguments_class.startswith("axolotl.")
        or "axolotl" in {*card.tags, *card.versions}
        or _has_token_count(contents)
    )
    if not ours:
        return None
    config = own or config_above(contents.files, is_config)
    settings, lora, base = Settings(), None, None
    if config is not None:
        settings = _settings(config)
        lora = _lora(config.data)
        base = as_text(config.data.get("base_model"))
    if log:
        settings = settings.over(_settings(YamlConfig(_LOG, log)))
    settings = settings.over(argument_settings(contents))
    known = config is not None or bool(log)
    return Reading(
        settings,
        defaults=_defaults(contents) if known else Settings(),
        lora=lora,
        base_model=(base, f"{config.file}: base_model") if base and config else None,
    )


def is_config(data: Mapping[str, Any]) -> bool:
    """Whether a mapping is a config of axolotl."""
    return "base_model" in data and any(key in data for key in _MARKS)


def _own_config(contents: Contents) -> YamlConfig | None:
    if is_config(contents.card.config):
        return YamlConfig("README.md", contents.card.config)
    return next((entry for entry in contents.configs if is_config(entry.data)), None)


def _logged(contents: Contents) -> Mapping[str, Any]:
    # Written at the start of a run; what follows may be long.
    text = contents.files.head(_LOG, MEBIBYTE)
    data = log_config(text) if text else {}
    return data if is_config(data) or "learning_rate" in data else {}


def _has_token_count(contents: Contents) -> bool:
    folders = {"", contents.checkpoint or ""}
    return any(contents.files.has(f"{folder}/{_TOKENS}" if folder else _TOKENS) for folder in folders)


def _settings(config: YamlConfig) -> Settings:
    file, data = config
    settings = Settings.read(data, file, _KEYS).said().over(warmup(data, file))
    if is_config(data):
        # The trainer is always given a number of steps, which the model card then lists.
        settings = settings.over(Settings.of(f"{file}: max_steps", {"max_steps": None}))
    batch, micro = as_count(data.get("batch_size")), settings.values.get("per_device_batch")
    if "grad_accum" not in settings.values and batch and micro:
        settings = settings.over(Settings.of(f"{file}: batch_size", {"grad_accum": max(batch // micro, 1)}))
    if data.get("adapter") == "qlora":
        settings = settings.over(Settings.of(f"{file}: adapter", {"load_in_4bit": True}))
    if "val_set_size" in data and not as_float(data["val_set_size"]) and not data.get("test_datasets"):
        settings = settings.over(Settings.of(f"{file}: val_set_size", {"eval_strategy": "no"}))
    liger = [key for key, value in data.items() if key.startswith("liger_") and as_bool(value)]
    if liger:
        settings = settings.over(Settings.of(f"{file}: {liger[0]}", {"use_liger_kernel": True}))
    tokens = data.get("special_tokens")
    pad = as_text(tokens.get("pad_token")) if isinstance(tokens, Mapping) else None
    if pad:
        settings = settings.over(Settings.of(f"{file}: special_tokens.pad_token", {"pad_token": pad}))
    return settings


def _defaults(contents: Contents) -> Settings:
    total = contents.state.total_steps if contents.state else None
    if total is None:
        ramp = Settings.of(_DEFAULT, {"warmup_ratio": _WARMUP_SHARE})
    else:
        steps = min(int(_WARMUP_SHARE * total), _MOST_WARMUP)
        ramp = Settings.of(_DEFAULT, {"warmup_steps": _LEAST_WARMUP if steps == 1 else steps})
    clip = Settings.of(
        TRANSFORMERS_DEFAULTS.sources["max_grad_norm"],
        {"max_grad_norm": TRANSFORMERS_DEFAULTS.values["max_grad_norm"]},
    )
    return _DEFAULTS.over(ramp).over(clip)


def _lora(data: Mapping[str, Any]) -> LoraSettings | None:
    rank = as_count(data.get("lora_r"))
    if rank is None:
        return None
    targets = data.get("lora_target_modules")
    listed = (
        tuple(sorted(name for name in targets if isinstance(name, str)))
        if isinstance(targets, list)
        else None
    )
    return LoraSettings(
        r=rank,
        alpha=as_finite(data.get("lora_alpha")),
        dropout=as_finite(data.get("lora_dropout")),
        target_modules=listed
        or ("all-linear" if as_bool(data.get("lora_target_linear")) else as_text(targets)),
        use_rslora=as_bool(data.get("peft_use_rslora")) or False,
        use_dora=as_bool(data.get("peft_use_dora")) or False,
    )
