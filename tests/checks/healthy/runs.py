"""Run folders of healthy runs, as each trainer leaves them; the readers of `gradian.runs` read them from disk."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

_TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
# As the trainer lists them in a model card.
_HYPERPARAMETERS = """The following hyperparameters were used during training:
- learning_rate: {plan.rate}
- train_batch_size: {plan.batch}
- eval_batch_size: 8
- seed: 42
- gradient_accumulation_steps: {plan.accumulation}
- lr_scheduler_type: cosine
- lr_scheduler_warmup_ratio: 0.05
- num_epochs: {plan.epochs}
"""
_WIDTH, _LAYERS = 64, 2
_LOGGED = 5  # Steps between two rows of the log.


@dataclass(frozen=True)
class Plan:
    """What a run was asked to do.

    Attributes:
        rows: of the training set.
        base: base model, as the adapter names it.
        epochs, batch, accumulation, rate, length: the settings, with a batch of one device.
        rank, alpha: of the adapter.
        curve: `text` for a loss that falls slowly, `labels` for one that is near zero soon.
    """

    rows: int
    base: str = "acme/base-1b"
    epochs: int = 2
    batch: int = 4
    accumulation: int = 1
    rate: float = 2e-4
    length: int = 2048
    rank: int = 8
    alpha: int = 16
    curve: str = "text"

    @property
    def steps(self) -> int:
        """Optimizer steps."""
        return self.epochs * -(-self.rows // (self.batch * self.accumulation))


Writer = Callable[[Path, Plan, Path], None]


def axolotl(folder: Path, plan: Plan, dataset: Path) -> None:
    """A model card with the config in it, the adapter, and a checkpoint with the log."""
    config = f"""base_model: {plan.base}
load_in_4bit: true
adapter: qlora
datasets:
  - path: {dataset.name}
    type: chat_template
    roles_to_train: [assistant]
    train_on_eos: turn
val_set_size: 0.05
sequence_len: {plan.length}
sample_packing: true
lora_r: {plan.rank}
lora_alpha: {plan.alpha}
lora_dropout: 0.05
lora_target_linear: true
gradient_accumulation_steps: {plan.accumulation}
micro_batch_size: {plan.batch}
num_epochs: {plan.epochs}
optimizer: adamw_8bit
lr_scheduler: cosine
learning_rate: {plan.rate}
bf16: auto
warmup_ratio: 0.05
seed: 42
"""
    card = f"""---
library_name: peft
base_model: {plan.base}
tags:
- axolotl
- generated_from_trainer
---

<details><summary>See axolotl config</summary>

axolotl version: `0.18.0`
```yaml
{config}```

</details><br>

### Training hyperparameters

{_HYPERPARAMETERS.format(plan=plan)}"""
    _write(folder / "README.md", card)
    _adapter(folder, plan, "0.19.1")
    checkpoint = folder / f"checkpoint-{plan.steps}"
    _write(checkpoint / "trainer_state.json", json.dumps(_state(plan)))
    _write(checkpoint / "tokens_state.json", json.dumps({"total": 90_000, "trainable": 40_000}))


def llamafactory(folder: Path, plan: Plan, dataset: Path) -> None:
    """The arguments as YAML, LLaMA-Factory's own log, the adapter, results; no state of the trainer at the root."""
    arguments = f"""bf16: true
cutoff_len: {plan.length}
dataset: {dataset.stem}
eval_strategy: steps
finetuning_type: lora
gradient_accumulation_steps: {plan.accumulation}
learning_rate: {plan.rate}
lora_alpha: {plan.alpha}
lora_rank: {plan.rank}
lora_target: all
lr_scheduler_type: cosine
model_name_or_path: {plan.base}
num_train_epochs: {plan.epochs}.0
output_dir: {folder.name}
packing: false
per_device_train_batch_size: {plan.batch}
stage: sft
template: qwen
val_size: 0.1
warmup_ratio: 0.1
"""
    _write(folder / "training_args.yaml", arguments)
    lines = []
    for row in _log(plan):
        names = {"step": "current_steps", "learning_rate": "lr"}
        kept = {names.get(key, key): value for key, value in row.items() if key != "grad_norm"}
        done = {"total_steps": plan.steps, "percentage": round(100 * row["step"] / plan.steps, 2)}
        lines.append(json.dumps({**kept, **done, "elapsed_time": "0:01:02"}))
    _write(folder / "trainer_log.jsonl", "\n".join(lines) + "\n")
    results = {"epoch": float(plan.epochs), "train_loss": 1.2, "train_runtime": 62.0}
    _write(folder / "train_results.json", json.dumps(results))
    _adapter(folder, plan, "0.18.0")


def unsloth(folder: Path, plan: Plan, dataset: Path) -> None:
    """The adapter on a 4-bit base, the card, and the state in the checkpoint."""
    _write(folder / "README.md", _card(plan, "unsloth, trl, sft", "- TRL: 0.24.0\n- Unsloth: 2025.11.1"))
    _write(folder / f"checkpoint-{plan.steps}" / "trainer_state.json", json.dumps(_state(plan)))
    _adapter(folder, plan, "0.18.0")


def trainer(folder: Path, plan: Plan, dataset: Path) -> None:
    """A plain Trainer's folder as it is on the hub: the card with its settings, the state, no `training_args.bin`."""
    _write(folder / "README.md", _card(plan, "generated_from_trainer", "- Transformers 4.57.1"))
    _write(folder / "trainer_state.json", json.dumps(_state(plan)))
    _adapter(folder, plan, "0.19.1")


def trl(folder: Path, plan: Plan, dataset: Path) -> None:
    """An older trl on the hub."""
    _write(folder / "README.md", _card(plan, "trl, sft, generated_from_trainer", "- TRL: 0.15.2"))
    _write(folder / "trainer_state.json", json.dumps(_state(plan)))
    _adapter(folder, plan, "0.18.0")


def gradian(folder: Path, plan: Plan, dataset: Path) -> None:
    """What `gradian train` writes, with the hash of the rows in it."""
    from gradian.data.formats import load_dataset
    from gradian.data.ids import dataset_hash
    from gradian.runs.gradian_run import RUN_FILE, GradianRun, RunDataset

    _adapter(folder / "adapter", plan, "0.19.1")
    settings = {
        "num_train_epochs": float(plan.epochs),
        "per_device_train_batch_size": plan.batch,
        "gradient_accumulation_steps": plan.accumulation,
        "learning_rate": plan.rate,
        "max_seq_length": plan.length,
        "warmup_ratio": 0.1,
        "lr_scheduler_type": "linear",
        "max_grad_norm": 1.0,
        "weight_decay": 0.0,
        "bf16": True,
        "fp16": False,
        "load_in_4bit": False,
        "extra": {},
    }
    run = GradianRun(
        backend="hf_peft",
        base_model=plan.base,
        adapter_path=str(folder / "adapter"),
        dataset=RunDataset(str(dataset), dataset_hash(load_dataset(dataset).examples), plan.rows, plan.rows),
        seed=0,
        train=settings,
        lora={"r": plan.rank, "lora_alpha": plan.alpha, "target_modules": _TARGETS},
        steps=plan.steps,
        inputs={},
        versions={"torch": "2.13.0", "peft": "0.19.1"},
        wall_time_s=62.0,
        gradian_version="0.1.0",
        log_history=tuple(_log(plan)),
    )
    _write(folder / RUN_FILE, run.to_json())


def _state(plan: Plan) -> dict[str, Any]:
    return {
        "global_step": plan.steps,
        "max_steps": plan.steps,
        "num_train_epochs": plan.epochs,
        "train_batch_size": plan.batch,
        "log_history": [*_log(plan), {"step": plan.steps, "train_loss": 1.2, "train_runtime": 62.0}],
    }


def _log(plan: Plan) -> list[dict[str, float]]:
    """Noisy losses that fall, norms that fall from a large one, a rate with warmup and decay, four evaluations."""
    rng = Random(plan.rows)
    warmup = max(1, plan.steps // 20)
    evaluated = {plan.steps * k // 4 // _LOGGED * _LOGGED for k in range(1, 5)}
    made = []
    for step in range(_LOGGED, plan.steps + 1, _LOGGED):
        done = step / plan.steps
        if plan.curve == "labels":
            loss = 2.5 * 0.001 ** min(1.0, 4 * done) + 0.02 * rng.random()
            norm, eval_loss = 40 * 0.003 ** min(1.0, 3 * done) * rng.uniform(0.6, 1.5), 0.03 + 0.012 * done
        else:
            loss = 2.1 - 0.7 * done + rng.uniform(-0.15, 0.15)
            norm, eval_loss = (
                (0.4 + 2.0 * 0.02**done) * rng.uniform(0.6, 1.6),
                2.0 - 0.5 * done + 0.04 * done**4,
            )
        rate = plan.rate * min(step / warmup, 1 - done)
        made.append(
            {
                "step": step,
                "epoch": done * plan.epochs,
                "loss": round(loss, 4),
                "grad_norm": norm,
                "learning_rate": rate,
            }
        )
        if step in evaluated:
            made.append(
                {"step": step, "epoch": done * plan.epochs, "eval_loss": eval_loss, "eval_runtime": 2.0}
            )
    return made


def _card(plan: Plan, tags: str, versions: str) -> str:
    listed = "\n".join(f"- {tag}" for tag in tags.split(", "))
    return f"""---
library_name: peft
base_model: {plan.base}
tags:
{listed}
---

### Training hyperparameters

{_HYPERPARAMETERS.format(plan=plan)}
### Framework versions

{versions}
"""


def _adapter(folder: Path, plan: Plan, peft: str) -> None:
    from safetensors.numpy import save_file

    settings = {
        "base_model_name_or_path": plan.base,
        "bias": "none",
        "init_lora_weights": True,
        "lora_alpha": plan.alpha,
        "lora_dropout": 0.05,
        "peft_type": "LORA",
        "peft_version": peft,
        "r": plan.rank,
        "target_modules": _TARGETS,
        "task_type": "CAUSAL_LM",
        "use_dora": False,
        "use_rslora": False,
    }
    _write(folder / "adapter_config.json", json.dumps(settings))
    values = np.random.default_rng(0)
    weights = {}
    for layer in range(_LAYERS):
        for target in _TARGETS:
            block = "self_attn" if target[0] in "qkvo" else "mlp"
            name = f"base_model.model.model.layers.{layer}.{block}.{target}.lora_"
            for side, shape in (("A", (plan.rank, _WIDTH)), ("B", (_WIDTH, plan.rank))):
                weights[f"{name}{side}.weight"] = values.normal(size=shape).astype(np.float32)
    save_file(weights, folder / "adapter_model.safetensors")


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
