"""A run of the Hugging Face `Trainer`, and what every trainer built on it records alike.

transformers 4.x and 5.x give the same record: `warmup_steps: 0.1` of 5.x is `warmup_ratio: 0.1` of 4.x.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradian.runs.contents import Contents, Reading
from gradian.runs.scalars import as_bool, as_bool_or_text, as_count, as_finite, as_float, as_int, as_text
from gradian.runs.settings import Key, Settings
from gradian.runs.trainer_state import FILE as STATE_FILE
from gradian.runs.training_args_bin import PickledObject

KEYS = (
    Key("learning_rate", "learning_rate", as_finite),
    Key("num_train_epochs", "epochs", as_finite),
    Key("max_steps", "max_steps", as_count),
    Key("per_device_train_batch_size", "per_device_batch", as_count),
    Key("gradient_accumulation_steps", "grad_accum", as_count),
    Key("lr_scheduler_type", "scheduler", as_text),
    Key("optim", "optimizer", as_text),
    Key("weight_decay", "weight_decay", as_finite),
    Key("max_grad_norm", "max_grad_norm", as_finite),
    Key("use_liger_kernel", "use_liger_kernel", as_bool),
    Key("use_liger", "use_liger_kernel", as_bool),  # trl before 0.17
    Key("seed", "seed", as_int),
    Key("fp16", "fp16", as_bool),
    Key("bf16", "bf16", as_bool_or_text),
    Key("eval_strategy", "eval_strategy", as_text),
    Key("evaluation_strategy", "eval_strategy", as_text),  # transformers before 4.41
    Key("logging_nan_inf_filter", "logging_nan_inf_filter", as_bool),
)

DEFAULTS = Settings.of(
    "default of transformers",
    {
        "learning_rate": 5e-5,
        "epochs": 3.0,
        "max_steps": None,
        "per_device_batch": 8,
        "grad_accum": 1,
        "warmup_steps": 0,
        "weight_decay": 0.0,
        "max_grad_norm": 1.0,
        "seed": 42,
    },
)

# As the trainer lists them in the model card.
_CARD_KEYS = (
    Key("learning_rate", "learning_rate", as_finite),
    Key("train_batch_size", "per_device_batch", as_count),
    Key("gradient_accumulation_steps", "grad_accum", as_count),
    Key("num_devices", "n_devices", as_count),
    Key("seed", "seed", as_int),
    Key("lr_scheduler_type", "scheduler", as_text),
    Key("lr_scheduler_warmup_steps", "warmup_steps", as_float),
    Key("lr_scheduler_warmup_ratio", "warmup_ratio", as_float),
    Key("num_epochs", "epochs", as_finite),
    Key("training_steps", "max_steps", as_count),
)


def read(contents: Contents) -> Reading | None:
    """Read the arguments that every trainer built on transformers records; None where there is nothing of them."""
    if contents.arguments or contents.state or contents.card.listed or contents.lora or contents.results:
        return Reading(argument_settings(contents))
    return None


def argument_settings(contents: Contents, keys: tuple[Key, ...] = ()) -> Settings:
    """Return what `training_args.bin` says, by the keys of transformers and those of a trainer on top of it."""
    if contents.arguments is None:
        return Settings()
    return settings_of(contents.arguments.state, contents.arguments_file, keys)


def settings_of(data: Mapping[str, Any], file: str, keys: tuple[Key, ...] = ()) -> Settings:
    """Return what arguments with the names of transformers say, whichever file holds them."""
    read = Settings.read(data, file, (*KEYS, *keys))
    return read.over(warmup(data, file)).over(_devices(data, file))


def warmup(data: Mapping[str, Any], file: str) -> Settings:
    """Return the warmup: a number of steps, or a share where that is what was asked for; steps win."""
    steps, ratio = as_finite(data.get("warmup_steps")), as_finite(data.get("warmup_ratio"))
    if steps is not None and 0 < steps < 1:
        return Settings.of(f"{file}: warmup_steps", {"warmup_ratio": steps})
    if steps is not None and steps >= 1:
        return Settings.of(f"{file}: warmup_steps", {"warmup_steps": int(steps)})
    if ratio is not None and 0 < ratio <= 1:
        return Settings.of(f"{file}: warmup_ratio", {"warmup_ratio": ratio})
    if steps is None and ratio is None:
        return Settings()
    return Settings.of(f"{file}: {'warmup_ratio' if steps is None else 'warmup_steps'}", {"warmup_steps": 0})


def _devices(data: Mapping[str, Any], file: str) -> Settings:
    # Either several GPUs of one process share a step (_n_gpu), or one GPU of each of several processes.
    local = as_count(data.get("_n_gpu"))
    state = data.get("distributed_state")
    processes = as_count(state.state.get("num_processes")) if isinstance(state, PickledObject) else None
    if local is None and processes is None:
        return Settings()
    names = [name for name, value in (("_n_gpu", local), ("num_processes", processes)) if value is not None]
    return Settings.of(
        f"{file}: {' x '.join(names)}", {"n_devices": max(local or 1, 1) * max(processes or 1, 1)}
    )


def card_settings(contents: Contents) -> Settings:
    """Return the settings that the trainer lists in the model card."""
    file = "README.md"
    listed = Settings.read(contents.card.listed, file, _CARD_KEYS).said()
    steps = listed.values.get("warmup_steps")
    values = {name: value for name, value in listed.values.items() if not name.startswith("warmup_")}
    sources = {name: listed.sources[name] for name in values}
    data = {"warmup_steps": steps, "warmup_ratio": listed.values.get("warmup_ratio")}
    return Settings(values, sources).over(_renamed(warmup(data, file)))


def _renamed(settings: Settings) -> Settings:
    prefix = "README.md: "
    return Settings(
        settings.values,
        {
            name: f"{prefix}lr_scheduler_{text.removeprefix(prefix)}"
            for name, text in settings.sources.items()
        },
    )


def state_settings(contents: Contents) -> Settings:
    """Return what the trainer's own state says of the settings; the least telling source."""
    state = contents.state
    if state is None:
        return Settings()
    file = f"{contents.checkpoint}/{STATE_FILE}" if contents.checkpoint else STATE_FILE
    found = Settings()
    if state.batch is not None:
        found = found.over(Settings.of(f"{file}: train_batch_size", {"per_device_batch": state.batch}))
    if state.epochs is not None:
        found = found.over(Settings.of(f"{file}: num_train_epochs", {"epochs": float(state.epochs)}))
    rates = [row.learning_rate for row in state.train_log if row.learning_rate is not None]
    # The peak, once the rate has fallen from it: before that, it may still rise.
    if len(rates) > 1 and max(rates) > rates[-1]:
        found = found.over(
            Settings.of(f"{file}: highest learning_rate logged", {"learning_rate": max(rates)})
        )
    return found
