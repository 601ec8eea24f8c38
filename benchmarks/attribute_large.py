"""`gradian attribute` from end to end on an index that memory cannot hold.

    python benchmarks/attribute_large.py --demo runs/demo --gb 20 --work /tmp/large --json large.json

The model, adapter and eval set are real (of a finished `gradian demo`, or given one by one); the training rows
are as many distinct ones as an index of the size takes; their gradients are generated (`generated_index.py`) and
written by Gradian's own writer under the very id that `gradian attribute` then looks for, so that
command finds its index whole and does everything else: it measures the capability, makes the queries, checks every
byte of the index, scores it and reports.

- ours: the command, in a process of its own.
- baseline: the same with GRADIAN_OPS=reference, where that finds the same index (`--no-reference` leaves it out).

Memory is read from /proc while they run. Anonymous memory is what a process needs; file-backed memory is pages of the
index that are mapped and can be dropped at any time. Before that, a sample of blocks is scored by both paths in this
process and each is compared with float64: beyond the bound of DataInf the exit code is 1.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
import yaml
from generated_index import GeneratedGradients, write_generated
from one_block import OneBlock
from score_baselines import exact_scores
from side_by_side import machine

from gradian.config import load_config
from gradian.data.formats import load_dataset
from gradian.demo.dataset import clean_rows, jsonl
from gradian.demo.files import DemoFiles
from gradian.engines import EngineSettings
from gradian.model.load import quiet_transformers
from gradian.ops._dispatch import ENVIRONMENT_VARIABLE
from gradian.progress import NullProgress
from gradian.query.contrastive import QueryItem, item_queries
from gradian.query.scorer import QueryGradients, rank_correlation, score_index
from gradian.session import Session
from gradian.store.disk import check_disk
from gradian.store.format import StorageDtype, index_id
from gradian.store.reader import IndexReader
from gradian.store.writer import open_writer
from gradian.types import FloatArray

EPS = 2.0**-24
# Of DataInf, as in tests/tolerances.py: |score - truth| <= BOUND * EPS * sum of magnitudes.
BOUND = 4.0
SAMPLE_BLOCKS = 4
SAMPLE_QUERIES = 4
POLL_S = 0.02
STORAGE: StorageDtype = "float16"
RUN = "import sys; from gradian.cli.main import run; sys.exit(run())"


@dataclass(frozen=True)
class Memory:
    """Most bytes that a process held: all of it, anonymous, and mapped from files; at different times, perhaps."""

    resident: int = 0
    anonymous: int = 0
    file_backed: int = 0


@dataclass(frozen=True)
class CommandRun:
    """What one `gradian attribute` took."""

    seconds: float
    memory: Memory
    scores: FloatArray


@dataclass(frozen=True)
class LargeRow:
    """The result.

    Attributes:
        index_bytes: of the gradients on disk.
        memory_bytes: of the machine.
        sample_error: largest |ours - truth| of the sample, in eps of the sum of magnitudes; at most 4.
        sample_reference_error: the same of the reference path.
        sample_difference: largest |ours - reference| of the sample over |reference|.
        sample_spearman: rank correlation of ours and reference on the sample, the least of its queries.
        score_difference, score_spearman: of the scores in the two reports; None without the second run.
    """

    case: str
    ours_s: float
    baseline_s: float | None
    ratio: float | None
    index_bytes: int
    memory_bytes: int
    rows: int
    write_s: float
    ours_peak_bytes: int
    ours_peak_anonymous_bytes: int
    ours_peak_file_backed_bytes: int
    baseline_peak_bytes: int | None
    baseline_peak_anonymous_bytes: int | None
    baseline_peak_file_backed_bytes: int | None
    sample_error: float
    sample_reference_error: float
    sample_difference: float
    sample_spearman: float | None
    score_difference: float | None
    score_spearman: float | None


def tiny_model(folder: Path) -> dict[str, str]:
    """Save a random model that reads bytes, an adapter and an eval set; return their places."""
    from peft import LoraConfig, get_peft_model
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    core = Tokenizer(
        models.BPE(
            vocab={t: i for i, t in enumerate(["<end>", *sorted(pre_tokenizers.ByteLevel.alphabet())])},
            merges=[],
        )
    )
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<end>", pad_token="<end>")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        eos_token_id=0,
        pad_token_id=0,
    )
    model = LlamaForCausalLM(config)
    places = {name: str(folder / name) for name in ("base_model", "adapter_path", "eval_dataset")}
    lora = LoraConfig(task_type="CAUSAL_LM", r=4, target_modules="all-linear", init_lora_weights=False)
    with quiet_transformers():
        model.save_pretrained(places["base_model"])
        tokenizer.save_pretrained(places["base_model"])
        get_peft_model(model, lora).save_pretrained(places["adapter_path"])
    rows = [{"prompt": f"{letter}?", "completion": letter} for letter in "abcdef"]
    Path(places["eval_dataset"]).write_text(jsonl(rows), encoding="utf-8")
    return places


def demo_places(folder: Path) -> dict[str, str]:
    """Return where a finished `gradian demo` has its model, adapter and eval set."""
    files = DemoFiles(folder)
    base_model = yaml.safe_load(files.config.read_text(encoding="utf-8"))["base_model"]
    return {
        "base_model": base_model,
        "adapter_path": str(files.run / "adapter"),
        "eval_dataset": str(files.eval),
    }


def training_rows(n: int) -> list[dict[str, str]]:
    """Return n distinct rows: the demo's clean ones, numbered."""
    clean = clean_rows()
    return [{**clean[i % len(clean)], "prompt": f"{clean[i % len(clean)]['prompt']} ({i})"} for i in range(n)]


def write_config(work: Path, places: Mapping[str, str]) -> Path:
    """Write the config that the command reads; return its path."""
    config = {
        **places,
        "dataset": str(work / "train.jsonl"),
        "cache_dir": str(work / "cache"),
        "grads": {"storage_dtype": STORAGE},
        # Scores are wanted whether or not the capability changed.
        "evaluation": {"metric": "contains", "max_new_tokens": 16, "require_significant": False},
        "clustering": {"method": "declared"},
    }
    path = work / "gradian.yaml"
    path.write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
    return path


def make_index(session: Session, work: Path, gigabytes: float) -> IndexReader:
    """Write training rows and the index of their ids, with generated gradients; keep what is there."""
    specs, grads = session.collector.specs, session.config.grads
    elements = sum(spec.size for spec in specs)
    n = max(2, round(gigabytes * 1e9 / elements / np.dtype(STORAGE).itemsize))
    (work / "train.jsonl").write_text(jsonl(training_rows(n)), encoding="utf-8")
    supervised = np.array([row.n_supervised for row in session.encoded], dtype=np.int64)
    cache = session.config.cache_dir
    with open_writer(
        cache, session.inputs, specs, n, STORAGE, grads.chunk_size, on_message=lambda text: None
    ) as writer:
        if writer.finished:
            return writer.finish()
        check_disk(cache, writer.bytes_left, grads)
        print(f"writing {writer.bytes_left / 1e9:.1f} GB of {n} rows x {elements:,}", file=sys.stderr)
        gradients = GeneratedGradients(specs, STORAGE, min(n, grads.chunk_size))
        return write_generated(writer, specs, gradients, supervised)


@contextmanager
def operations(choice: str) -> Iterator[None]:
    """While active, GRADIAN_OPS is `choice`."""
    before = os.environ.get(ENVIRONMENT_VARIABLE)
    os.environ[ENVIRONMENT_VARIABLE] = choice
    try:
        yield
    finally:
        if before is None:
            del os.environ[ENVIRONMENT_VARIABLE]
        else:
            os.environ[ENVIRONMENT_VARIABLE] = before


@dataclass(frozen=True)
class Sample:
    """How ours and the reference path did on a few blocks; see LargeRow."""

    error: float
    reference_error: float
    difference: float
    spearman: float | None


def compare_sample(session: Session, store: IndexReader, eval_items: Sequence[QueryItem]) -> Sample:
    """Score a few blocks, all rows of each, by both paths and in float64."""
    queries = item_queries(session.collector, session.encoder, eval_items, "target")
    settings = EngineSettings(lambda_scale=session.config.engine.lambda_scale)
    chosen = np.unique(np.linspace(0, len(store.blocks) - 1, SAMPLE_BLOCKS).astype(int))
    errors: dict[str, float] = {"auto": 0.0, "reference": 0.0}
    difference, correlations = 0.0, []
    for block in chosen:
        part = OneBlock(store, int(block))
        asked = QueryGradients(queries.ids, (queries.blocks[block],))
        truth, magnitude = exact_scores(part, [asked.blocks[0].numpy()])
        scores = {}
        for choice in errors:
            with operations(choice):
                scores[choice] = score_index(part, asked, ["datainf"], settings)["datainf"].values.T
            error = np.abs(scores[choice] - truth) / np.where(magnitude > 0, magnitude, 1.0)
            errors[choice] = max(errors[choice], float(error.max()) / EPS)
        difference = max(difference, largest_relative_difference(scores["auto"], scores["reference"]))
        correlations += [
            rank_correlation(a, b) for a, b in zip(scores["auto"].T, scores["reference"].T, strict=True)
        ]
    known = [value for value in correlations if value is not None]
    return Sample(errors["auto"], errors["reference"], difference, min(known, default=None))


def largest_relative_difference(values: FloatArray, reference: FloatArray) -> float:
    """Return the largest |value - reference| / |reference|; where the reference is zero, |value|."""
    scale = np.where(reference != 0, np.abs(reference), 1.0)
    return float((np.abs(values - reference) / scale).max())


def memory_of(process: int) -> Memory:
    """Return what a running process holds now, and the most it was resident; zeros when it is gone."""
    try:
        text = Path(f"/proc/{process}/status").read_text(encoding="ascii")
    except OSError:
        return Memory()
    kilobytes = {
        name: int(value.split()[0])
        for name, _, value in (line.partition(":") for line in text.splitlines())
        if name in ("VmHWM", "RssAnon", "RssFile")
    }
    return Memory(*(1024 * kilobytes.get(name, 0) for name in ("VmHWM", "RssAnon", "RssFile")))


def attribute(config: Path, out: Path, choice: str) -> CommandRun:
    """Run `gradian attribute` in a process of its own and watch its memory.

    Raises:
        RuntimeError: it failed; with what it said.
    """
    command = [sys.executable, "-c", RUN, "attribute", "--config", str(config), "--out", str(out)]
    environment = {**os.environ, ENVIRONMENT_VARIABLE: choice}
    log = out.with_suffix(".log")
    peak = Memory()
    start = time.perf_counter()
    with log.open("wb") as file:
        process = subprocess.Popen(command, env=environment, stdout=file, stderr=subprocess.STDOUT)
        while process.poll() is None:
            now = memory_of(process.pid)
            peak = Memory(*map(max, zip(asdict(peak).values(), asdict(now).values(), strict=True)))
            time.sleep(POLL_S)
    seconds = time.perf_counter() - start
    if process.returncode != 0:
        raise RuntimeError(f"gradian attribute ended with {process.returncode}:\n{log.read_text()[-4000:]}")
    report = json.loads((out / "report.json").read_text(encoding="utf-8"))
    scores = np.array([example["score"] for example in report["examples"]], dtype=np.float64)
    return CommandRun(seconds, peak, scores)


def sentences(row: LargeRow) -> list[str]:
    """Say what was measured."""

    def command(name: str, seconds: float, peak: int, anonymous: int, file_backed: int) -> str:
        return (
            f"{name}: {seconds:.1f} s; peak resident {peak / 1e9:.2f} GB, anonymous {anonymous / 1e9:.2f} GB, "
            f"mapped from files {file_backed / 1e9:.2f} GB"
        )

    lines = [
        f"{row.case}: {row.rows} rows, {row.index_bytes / 1e9:.2f} GB in {row.write_s:.0f} s, "
        f"{row.index_bytes / row.memory_bytes:.0%} of this machine's memory",
        command(
            "gradian attribute",
            row.ours_s,
            row.ours_peak_bytes,
            row.ours_peak_anonymous_bytes,
            row.ours_peak_file_backed_bytes,
        ),
    ]
    if row.baseline_s is not None:
        lines += [
            command(
                "GRADIAN_OPS=reference",
                row.baseline_s,
                row.baseline_peak_bytes or 0,
                row.baseline_peak_anonymous_bytes or 0,
                row.baseline_peak_file_backed_bytes or 0,
            ),
            f"scores of the two reports: largest relative difference {row.score_difference:.1e}, "
            f"Spearman {row.score_spearman}",
        ]
    return [
        *lines,
        f"sample of blocks against float64: ours {row.sample_error:.2f} eps of the terms, reference "
        f"{row.sample_reference_error:.2f}, at most {BOUND:g}; ours against reference: largest relative difference "
        f"{row.sample_difference:.1e}, Spearman {row.sample_spearman}",
    ]


def options_of(argv: list[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gb", type=float, default=20.0, help="gradients on disk (default: 20)")
    parser.add_argument("--demo", type=Path, metavar="DIR", help="a finished `gradian demo`")
    for name in ("base-model", "adapter", "eval-dataset"):
        parser.add_argument(f"--{name}", metavar="PATH", help="instead of the demo's")
    parser.add_argument(
        "--work", type=Path, metavar="DIR", help="folder for everything (default: a temporary one)"
    )
    parser.add_argument(
        "--keep", action="store_true", help="leave the index in --work; a later run finds it there"
    )
    parser.add_argument(
        "--no-reference", action="store_true", help="do not run the command on the references"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    parser.add_argument("--quick", action="store_true", help="a tiny random model and a few megabytes")
    return parser.parse_args(argv)


def places_of(options: argparse.Namespace, work: Path) -> dict[str, str]:
    """Return the model, adapter and eval set that the options name."""
    places = demo_places(options.demo) if options.demo else {}
    if options.quick and not places:
        places = tiny_model(work)
    given = {
        "base_model": options.base_model,
        "adapter_path": options.adapter,
        "eval_dataset": options.eval_dataset,
    }
    return {**places, **{name: value for name, value in given.items() if value}}


def absolute(place: str) -> str:
    """Return a path that holds from any folder; the name of a model on a hub stays as it is."""
    return str(Path(place).absolute()) if Path(place).exists() else place


def run(options: argparse.Namespace, work: Path) -> int:
    """Make the index, compare, run the command; return the exit code."""
    places = places_of(options, work)
    if len(places) < 3:
        print("give --demo DIR, or --base-model, --adapter and --eval-dataset", file=sys.stderr)
        return 2
    config = write_config(work, {name: absolute(place) for name, place in places.items()})
    gigabytes = 0.003 if options.quick else options.gb
    session = Session(load_config(config), NullProgress())
    start = time.perf_counter()
    store = make_index(session, work, gigabytes)
    write_s = time.perf_counter() - start
    examples = load_dataset(places["eval_dataset"]).examples[:SAMPLE_QUERIES]
    sample = compare_sample(session, store, [QueryItem(example) for example in examples])
    with operations("reference"):
        same_index = index_id(Session(session.config, NullProgress()).inputs) == store.id
    rows, index_bytes = store.n, sum(entry.bytes for entry in store.manifest.chunks)
    # The model must not take from the memory that the command has.
    del session, store
    gc.collect()
    ours = attribute(config, work / "ours", "auto")
    row = LargeRow(
        case=f"gradian attribute, {index_bytes / 1e9:.3g} GB index",
        ours_s=ours.seconds,
        baseline_s=None,
        ratio=None,
        index_bytes=index_bytes,
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        rows=rows,
        write_s=write_s,
        ours_peak_bytes=ours.memory.resident,
        ours_peak_anonymous_bytes=ours.memory.anonymous,
        ours_peak_file_backed_bytes=ours.memory.file_backed,
        baseline_peak_bytes=None,
        baseline_peak_anonymous_bytes=None,
        baseline_peak_file_backed_bytes=None,
        sample_error=sample.error,
        sample_reference_error=sample.reference_error,
        sample_difference=sample.difference,
        sample_spearman=sample.spearman,
        score_difference=None,
        score_spearman=None,
    )
    if not same_index:
        print("GRADIAN_OPS=reference has an index of its own here: not run", file=sys.stderr)
    elif not options.no_reference:
        reference = attribute(config, work / "reference", "reference")
        row = replace(
            row,
            baseline_s=reference.seconds,
            ratio=ours.seconds / reference.seconds,
            baseline_peak_bytes=reference.memory.resident,
            baseline_peak_anonymous_bytes=reference.memory.anonymous,
            baseline_peak_file_backed_bytes=reference.memory.file_backed,
            score_difference=largest_relative_difference(ours.scores, reference.scores),
            score_spearman=rank_correlation(ours.scores, reference.scores),
        )
    print("\n".join([machine(torch.device("cpu"), torch.float32), *sentences(row)]))
    if options.json:
        options.json.write_text(json.dumps([asdict(row)], indent=2) + "\n", encoding="utf-8")
    # Written so that NaN fails.
    within = row.sample_error <= BOUND and row.sample_reference_error <= BOUND
    if not within:
        print(f"scores are off by more than {BOUND:g} eps of their terms", file=sys.stderr)
    return 0 if within else 1


def main(argv: list[str] | None = None) -> int:
    """Run in `--work` or in a temporary folder; return the exit code."""
    options = options_of(argv)
    if options.work is None:
        with TemporaryDirectory(prefix="gradian-large-") as folder:
            return run(options, Path(folder))
    options.work.mkdir(parents=True, exist_ok=True)
    try:
        return run(options, options.work)
    finally:
        if not options.keep:
            shutil.rmtree(options.work / "cache", ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
