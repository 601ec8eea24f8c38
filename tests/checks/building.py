"""Small inputs for the checks: a healthy run to change one thing of, rows, and a tokenizer."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradian.checks.audit import Audit
from gradian.data.formats import Dataset
from gradian.data.ids import example_id
from gradian.data.rows import read_row
from gradian.runs.artifact import EvalRow, HyperParameters, LogRow, LoraSettings, RunArtifact
from tests.conftest import make_tokenizer

if TYPE_CHECKING:
    from gradian.data.chat import ChatEncoder

CASES = Path(__file__).resolve().parents[1] / "fixtures" / "cases"
SETTINGS = {field.name for field in dataclasses.fields(HyperParameters)}

# Nothing here is near any threshold.
HEALTHY = HyperParameters(
    learning_rate=1e-4,
    epochs=2.0,
    per_device_batch=4,
    grad_accum=4,
    warmup_ratio=0.05,
    scheduler="cosine",
    optimizer="adamw_torch",
    weight_decay=0.0,
    max_grad_norm=1.0,
    max_length=1024,
    overlong_rows="truncate",
    packing=False,
    assistant_only_loss=True,
    use_liger_kernel=False,
    seed=42,
    fp16=False,
    bf16=True,
    eval_strategy="steps",
    eval_rows=100,
    logging_nan_inf_filter=False,
)
HEALTHY_LORA = LoraSettings(
    r=16,
    alpha=32,
    dropout=0.05,
    target_modules=("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
    n_parameters=1_000_000,
    n_modules=112,
)


def train_log(
    losses: Sequence[float | None],
    *,
    norms: Sequence[float | None] | None = None,
    rates: Sequence[float] | None = None,
    every: int = 10,
) -> tuple[LogRow, ...]:
    """A log with one row each `every` steps; norms are 0.5 and rates fall linearly unless they are given."""
    n = len(losses)
    norms = norms or [0.5] * n
    rates = rates or [1e-4 * (n - 1 - i) / n for i in range(n)]
    return tuple(
        LogRow(step=(i + 1) * every, loss=losses[i], grad_norm=norms[i], learning_rate=rates[i])
        for i in range(n)
    )


def eval_log(losses: Sequence[float | None], *, name: str = "", every: int = 100) -> tuple[EvalRow, ...]:
    """An evaluation each `every` steps."""
    return tuple(EvalRow(step=(i + 1) * every, loss=loss, name=name) for i, loss in enumerate(losses))


def falling(n: int, start: float = 2.0, end: float = 1.0) -> list[float]:
    """Losses that fall evenly."""
    return [start + (end - start) * i / (n - 1) for i in range(n)]


def healthy_run(**changes: Any) -> RunArtifact:
    """A run of 1000 steps with which nothing is wrong, except for `changes`.

    A name of `HyperParameters` changes a setting; `lora=` takes a mapping of changes, or a whole value or None;
    any other name changes the run itself.
    """
    lora = changes.pop("lora", {})
    hyper = {name: changes.pop(name) for name in list(changes) if name in SETTINGS}
    run = RunArtifact(
        folder=Path("runs/healthy"),
        trainer="trl",
        hyper=dataclasses.replace(HEALTHY, **hyper),
        lora=dataclasses.replace(HEALTHY_LORA, **lora) if isinstance(lora, Mapping) else lora,
        base_model="acme/base-1b",
        train_log=train_log(falling(100)),
        eval_log=eval_log(falling(10, 1.9, 1.2)),
        global_step=1000,
        total_steps=1000,
        n_train_rows=8000,
        versions={"trl": "1.16.0", "transformers": "5.24.0"},
        has_log=True,
    )
    return dataclasses.replace(run, **changes)


def audit_run(**changes: Any) -> Audit:
    """An audit of `healthy_run(**changes)` alone."""
    return Audit(run=healthy_run(**changes))


def dataset(rows: Iterable[Mapping[str, Any]], path: str = "train.jsonl") -> Dataset:
    """The rows as a file of them would be read, without findings of reading."""
    read = (read_row(row, i, example_id(row, i)) for i, row in enumerate(rows))
    examples = tuple(parsed.example for parsed in read)
    return Dataset(Path(path), examples, shapes=Counter(example.shape for example in examples))


def pairs(n: int, answer: Callable[[int], str] = "answer {}".format) -> Dataset:
    """`n` prompts with different answers."""
    return dataset({"prompt": f"question {i}", "completion": answer(i)} for i in range(n))


def encoder(max_seq_length: int = 2**31 - 1, **tokenizer: Any) -> ChatEncoder:
    """An encoder over a byte-level chat tokenizer: one token a byte.

    Args:
        max_seq_length: where rows are cut.
        **tokenizer: attributes to set on the tokenizer, `pad_token` for one.
    """
    from gradian.data.chat import ChatEncoder

    made = make_tokenizer()
    for name, value in tokenizer.items():
        setattr(made, name, value)
    return ChatEncoder(made, max_seq_length)
