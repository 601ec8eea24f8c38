"""The gradients of an index against plain LoRA training: forward and backward over the same padded batches.

    python benchmarks/bench_index.py --json index.json

- ours: `GradientCollector.batches`, every example's own gradient; in the rows that say so, `build_index` with
  its writer and the finished index on disk (in a temporary folder).
- baseline: `model(input_ids, attention_mask, labels=labels).loss.backward()` with the LoRA parameters asking
  for gradients, which are dropped afterwards: one summed gradient a batch, and no optimiser step.

The model is a random Llama with SmolLM2-135M's layers, fewer of them, and LoRA on every linear layer. The
larger the share of the output head in a model, the more ours saves where few tokens are supervised: the
share is printed. Before anything is measured, the per-example gradients of one batch are added up and compared
with the baseline's own gradient: a difference ends with exit code 1.

Where the time of a whole index goes comes from one more run of it, under Python's own profiler, which sees each
part as the calls of the functions that do it. On a GPU the calls return before the work is done, so nothing is said.
"""

from __future__ import annotations

import cProfile
import pstats
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from side_by_side import Goal, Row, Run, arguments, default_device, machine, measure, relative_error, report
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from gradian.config.schema import GradsConfig
from gradian.data.collate import length_batches, pad_batch
from gradian.grads.collect import GradientCollector, build_index
from gradian.model.load import LoadedModel, quiet_transformers
from gradian.model.lora import find_blocks
from gradian.store.writer import open_writer
from gradian.types import EncodedExample

GOALS = tuple(
    Goal(f"{case}{ending}", "time", at_most)
    for case, at_most in (("supervised 20% vocab 128k", 0.6), ("supervised 100% vocab 8k", 1.0))
    for ending in ("", ", index on disk")
)
# Rounding of sums over all tokens, in another order than autograd's, amplified by the layers behind.
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 3e-2}


# The functions whose calls are a part of an index, as (end of the file's name, function). Functions of one
# part never call one another.
FORWARD = (("grads/loss.py", "batch_losses"),)
EINSUM = (("ops/per_example_grad.py", "per_example_grad_reference"),)
FINISH = (("ops/per_example_grad.py", "finish"),)
BACKWARD = (("torch/_tensor.py", "backward"),)
WRITER = tuple(
    ("store/writer.py", name) for name in ("chunk", "write_rows", "write_examples", "finish", "open_writer")
)
CHECKSUM = (("store/format.py", "checksum_file"),)


@dataclass(frozen=True)
class IndexRow(Row):
    """A line of the result.

    Attributes:
        shares: of an index on disk, each part's share of the time; what is missing to 1 is collating, moving
            and checking.
    """

    shares: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Size:
    """Rows and tokens of a pass, and the model."""

    rows: int = 8
    batch_size: int = 8
    tokens: int = 128
    hidden: int = 576
    intermediate: int = 1536
    layers: int = 8
    heads: int = 9
    kv_heads: int = 3
    vocabularies: tuple[tuple[str, int], ...] = (("8k", 8192), ("128k", 131072))


QUICK = Size(
    rows=3,
    batch_size=2,
    tokens=20,
    hidden=24,
    intermediate=40,
    layers=2,
    heads=4,
    kv_heads=2,
    vocabularies=(("8k", 61), ("128k", 97)),
)


def random_lora(size: Size, vocabulary: int, device: torch.device, dtype: torch.dtype) -> LoadedModel:
    """Return a random model with a random adapter; B is not zero, or A's gradients would be."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=size.hidden,
        intermediate_size=size.intermediate,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.kv_heads,
        max_position_embeddings=size.tokens,
        tie_word_embeddings=True,
        use_cache=False,
    )
    lora = LoraConfig(task_type="CAUSAL_LM", r=8, target_modules="all-linear", init_lora_weights=False)
    with quiet_transformers():
        model = get_peft_model(LlamaForCausalLM(config).to(device, dtype), lora)
    tokenizer = SimpleNamespace(pad_token_id=0, eos_token_id=2)
    return LoadedModel(model=model, tokenizer=tokenizer, device=device, dtype=dtype)


def random_rows(size: Size, vocabulary: int, supervised_share: float) -> list[EncodedExample]:
    """Return rows of three quarters of the length up to all of it, supervised at their ends as chats are."""
    generator = np.random.default_rng(0)
    rows = []
    for i, length in enumerate(np.linspace(0.75 * size.tokens, size.tokens, size.rows).astype(int)):
        first = max(1, round(length * (1 - supervised_share)))
        supervised = np.arange(length) >= first
        rows.append(EncodedExample(f"row-{i}", i, generator.integers(3, vocabulary, length), supervised))
    return rows


def labelled_batches(
    rows: Sequence[EncodedExample], size: Size, device: torch.device
) -> list[dict[str, Tensor]]:
    """Return the model's inputs with labels, batched and padded exactly as capture does."""
    batches = []
    for indices in length_batches([len(row) for row in rows], size.batch_size):
        padded = pad_batch([rows[int(i)] for i in indices], pad_id=0)
        batch = {
            "input_ids": padded.input_ids,
            "attention_mask": padded.attention_mask,
            "labels": np.where(padded.supervised, padded.input_ids, -100),
        }
        batches.append({name: torch.from_numpy(values).to(device) for name, values in batch.items()})
    return batches


def lora_weights(model: Any) -> list[Any]:
    """Return A, B, A, B, ... in the order of Gradian's blocks."""
    return [weight for pair in find_blocks(model).pairs for weight in (pair.a.weight, pair.b.weight)]


def train_pass(model: Any, weights: Sequence[Any], batches: Sequence[Mapping[str, Tensor]]) -> list[Tensor]:
    """Run the baseline over the batches; return the weights' gradients of the last one."""
    model.train()
    for weight in weights:
        weight.requires_grad_(True)
    gradients: list[Tensor] = []
    for batch in batches:
        model(**batch).loss.backward()
        gradients = [weight.grad for weight in weights]
        for weight in weights:
            weight.grad = None
    return gradients


def disagreements(collector: GradientCollector, rows: Sequence[EncodedExample], size: Size) -> list[str]:
    """Return the blocks where our examples' gradients do not add up to the baseline's, in sentences."""
    loaded = collector.loaded
    indices = length_batches([len(row) for row in rows], size.batch_size)[0]
    chosen = [rows[int(i)] for i in indices]
    ours = collector.gradients(chosen)
    batches = labelled_batches(chosen, size, loaded.device)
    theirs = train_pass(loaded.model, lora_weights(loaded.model), batches)
    # The baseline's loss is the mean over the batch's tokens; an example's own is the mean over its own.
    counts = torch.tensor([float(row.n_supervised) for row in chosen])
    tolerance = TOLERANCE[loaded.dtype]
    found = []
    for spec, each, a, b in zip(collector.specs, ours, theirs[::2], theirs[1::2], strict=True):
        truth = torch.cat([a.flatten(), b.flatten()]).cpu()
        error = relative_error((counts / counts.sum()) @ each, truth)
        # Written so that NaN fails.
        if not error <= tolerance:
            found.append(f"{spec.name}: gradients differ by {error:.1e}, more than {tolerance:.0e}")
    return found


def write_index(collector: GradientCollector, rows: Sequence[EncodedExample]) -> None:
    """Build a whole index of the rows and delete it."""
    grads = collector.grads
    with (
        TemporaryDirectory(prefix="gradian-bench-") as folder,
        open_writer(
            Path(folder), {}, collector.specs, len(rows), grads.storage_dtype, grads.chunk_size
        ) as writer,
    ):
        build_index(collector, rows, writer)
        writer.finish()


def where_the_time_goes(run: Run) -> dict[str, float]:
    """Return each part's share of the time of one run of `write_index`."""
    profiler = cProfile.Profile()
    profiler.runcall(run)
    calls = pstats.Stats(profiler).stats  # type: ignore[attr-defined]
    whole = sum(own for _, _, own, _, _ in calls.values())

    def seconds(functions: Sequence[tuple[str, str]]) -> float:
        found: list[float] = [
            cumulative
            for (file, _, name), (_, _, _, cumulative, _) in calls.items()
            if any(file.endswith(end) and name == wanted for end, wanted in functions)
        ]
        return sum(found)

    # Whole gradients are converted to the storage format in collect.py, and nothing else is converted there.
    cast = sum(
        cumulative
        for (_, _, name), (_, _, _, _, callers) in calls.items()
        if name == "<method 'to' of 'torch._C.TensorBase' objects>"
        for (file, _, _), (_, _, _, cumulative) in callers.items()
        if file.endswith("grads/collect.py")
    )
    parts = {
        "forward": seconds(FORWARD),
        "backward": seconds(BACKWARD) - seconds(EINSUM),
        "einsum": seconds(EINSUM),
        "cast": cast + seconds(FINISH),
        "write": seconds(WRITER) - seconds(CHECKSUM),
        "checksum": seconds(CHECKSUM),
    }
    return {name: part / whole for name, part in parts.items()}


def measured_rows(
    case: str, collector: GradientCollector, rows: Sequence[EncodedExample], size: Size, repeats: int
) -> list[IndexRow]:
    """Return the result of one case."""
    loaded = collector.loaded
    batches = labelled_batches(rows, size, loaded.device)
    weights = lora_weights(loaded.model)
    variants: dict[str, Run] = {
        "ours": lambda: deque(collector.batches(rows), maxlen=0),
        "baseline": lambda: train_pass(loaded.model, weights, batches),
        "on disk": lambda: write_index(collector, rows),
    }
    costs = measure(variants, repeats, loaded.device)
    shares = where_the_time_goes(variants["on disk"]) if loaded.device.type == "cpu" else {}
    return [
        IndexRow.of(case, costs["ours"], costs["baseline"]),
        replace(IndexRow.of(f"{case}, index on disk", costs["on disk"], costs["baseline"]), shares=shares),
    ]


def shares_table(rows: Sequence[IndexRow]) -> list[str]:
    """Return the shares of each index on disk, a line each."""
    lines = [row for row in rows if row.shares]
    if not lines:
        return []
    width = max(len(row.case) for row in lines)
    head = f"{'where the time goes':{width}} " + " ".join(f"{name:>9}" for name in lines[0].shares)
    return [
        head,
        *(
            f"{row.case:{width}} " + " ".join(f"{share:9.1%}" for share in row.shares.values())
            for row in lines
        ),
    ]


def head_share(model: Any) -> float:
    """Return the output head's share of the elements of all linear layers, about its share of the work."""
    linear = sum(module.weight.numel() for module in model.modules() if isinstance(module, nn.Linear))
    return float(model.get_output_embeddings().weight.numel() / linear)


def main(argv: list[str] | None = None) -> int:
    """Check, measure and print; return the exit code."""
    parser = arguments(__doc__)
    parser.add_argument("--layers", type=int, help=f"layers of the model (default: {Size.layers})")
    parser.add_argument("--tokens", type=int, help=f"tokens of the longest row (default: {Size.tokens})")
    options = parser.parse_args(argv)
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    chosen = {name: value for name in ("layers", "tokens") if (value := getattr(options, name)) is not None}
    size = replace(QUICK if options.quick else Size(), **chosen)
    device, dtype = default_device()
    setting = [
        machine(device, dtype),
        f"{size.rows} rows of up to {size.tokens} tokens in batches of {size.batch_size}, "
        f"{size.layers} layers of width {size.hidden}, LoRA of rank 8 on every linear layer",
    ]
    result: list[IndexRow] = []
    for vocabulary_name, vocabulary in size.vocabularies:
        loaded = random_lora(size, vocabulary, device, dtype)
        collector = GradientCollector(loaded, GradsConfig(batch_size=size.batch_size), seed=0)
        setting.append(
            f"vocab {vocabulary_name}: the output head is {head_share(loaded.model):.0%} of the linear layers"
        )
        for share in (0.2, 1.0):
            case = f"supervised {share:.0%} vocab {vocabulary_name}"
            rows = random_rows(size, vocabulary, share)
            found = disagreements(collector, rows, size)
            if found:
                print("\n".join([f"{case}: ours and the baseline disagree", *found]), file=sys.stderr)
                return 1
            result += measured_rows(case, collector, rows, size, options.repeats)
            print(f"{case}: done", file=sys.stderr)
    report(
        "Gradients of an index, against LoRA training",
        [*setting, *shares_table(result)],
        result,
        [] if options.quick else GOALS,
        options.json,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
