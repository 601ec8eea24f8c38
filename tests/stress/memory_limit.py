"""`gradian attribute` where address space is limited to a quarter of the index.

    python -m tests.stress.memory_limit --work /tmp/limited

The model is a tiny one with a wide adapter, the index is of generated gradients and lies under the very id that the
command looks for. First the command runs over a few rows, which shows what the process maps without an index. The
limit (`ulimit -v`) is that and `--allowance-gb`; the index is made at least four times as large as the limit, by
default in one block, the worst case. Then the command runs over it with and without the limit, by the compiled
operations and by the references. The reports must be the same files. Prints JSON.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import yaml

from gradian.store.reader import IndexReader
from gradian.store.writer import IndexWriter

GB = 10**9
TIMES = 4
"""How much larger than the limit the index is."""

RUN = "import sys; from gradian.cli.main import run; sys.exit(run())"
# Two layers have a place for it, one row of it is 0.8 MB.
HIDDEN, INNER, RANK = 512, 1024, 256
_POLL_S = 0.05


@dataclass(frozen=True)
class Run:
    """One `gradian attribute`.

    Attributes:
        ops: GRADIAN_OPS.
        limit_bytes: of address space; None for none.
        mapped_bytes: the most address space it had.
        resident_bytes: the most memory it had, pages of the index included.
        anonymous_bytes: the most that was not pages of files.
        report: SHA-256 of report.json.
    """

    ops: str
    limit_bytes: int | None
    exit_code: int
    seconds: float
    mapped_bytes: int
    resident_bytes: int
    anonymous_bytes: int
    report: str


def make_model(folder: Path, *, rank: int = RANK) -> dict[str, str]:
    """Save a random model, a wide adapter for it and an eval set; return their places."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    from tests.conftest import make_tokenizer

    tokenizer = make_tokenizer()
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=HIDDEN,
            intermediate_size=INNER,
            num_hidden_layers=1,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=256,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )
    places = {name: str(folder / name) for name in ("base_model", "adapter_path", "eval_dataset")}
    lora = LoraConfig(task_type="CAUSAL_LM", r=rank, target_modules="all-linear", init_lora_weights=False)
    model.save_pretrained(places["base_model"])
    tokenizer.save_pretrained(places["base_model"])
    get_peft_model(model, lora).save_pretrained(places["adapter_path"])
    write_rows(Path(places["eval_dataset"]), 6)
    return places


def write_rows(path: Path, n: int) -> None:
    """Write n distinct training rows."""
    rows = ({"prompt": f"{row}?", "completion": f"{row % 7}", "cluster": f"c{row % 3}"} for row in range(n))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def write_config(folder: Path, places: dict[str, str], module: str | None) -> Path:
    """Write the config that the command reads; return its path."""
    config = {
        **places,
        "dataset": str(folder / "train.jsonl"),
        "cache_dir": str(folder / "cache"),
        "device": "cpu",
        "grads": {"storage_dtype": "float16", "module_filter": module},
        "evaluation": {"metric": "contains", "max_new_tokens": 4, "require_significant": False},
        "clustering": {"method": "declared"},
    }
    path = folder / "gradian.yaml"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    return path


def fill(writer: IndexWriter, sizes: Sequence[int], supervised: Sequence[int]) -> IndexReader:
    """Fill an index with random gradients: rows of one chunk's noise, dealt anew and scaled to every chunk."""
    rng = np.random.default_rng(0)
    noise = 0.01 * rng.standard_normal((256, max(sizes)), dtype=np.float32)
    noise = noise.astype(np.float16)
    for number in writer.pending:
        rows = np.array(writer.chunk_rows(number), dtype=np.int64)
        with writer.chunk(number) as chunk:
            for block, size in enumerate(sizes):
                first = int(rng.integers(max(sizes) - size + 1))
                values = noise[rng.permutation(256)[: len(rows)], first : first + size]
                # Powers of two: a row is large or small, and stays exact.
                sizes_of_rows = (2.0 ** rng.integers(-2, 3, (len(rows), 1))).astype(np.float16)
                chunk.write_block(block, rows, values * sizes_of_rows)
            chunk.write_examples(rows, 1.0 + rows / (rows + 1.0), np.asarray(supervised)[rows])
    return writer.finish()


def make_index(config: Path, n: int) -> int:
    """Write n training rows and their index; return its bytes."""
    from gradian.config import load_config
    from gradian.progress import NullProgress
    from gradian.session import Session
    from gradian.store.writer import open_writer

    settings = load_config(config)
    write_rows(Path(settings.dataset or ""), n)
    session = Session(settings, NullProgress())
    specs, grads = session.collector.specs, settings.grads
    supervised = [row.n_supervised for row in session.encoded]
    with open_writer(
        settings.cache_dir, session.inputs, specs, n, grads.storage_dtype, grads.chunk_size
    ) as writer:
        reader = fill(writer, [spec.size for spec in specs], supervised)
    return sum(entry.bytes for entry in reader.manifest.chunks)


def row_bytes(config: Path) -> int:
    """Bytes that one row of the index takes."""
    from gradian.config import load_config
    from gradian.progress import NullProgress
    from gradian.session import Session

    return 2 * sum(spec.size for spec in Session(load_config(config), NullProgress()).collector.specs)


def attribute(config: Path, out: Path, ops: str, limit: int | None = None) -> Run:
    """Run the command in a process of its own, limited if need be, and watch its memory."""

    def limited() -> None:
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

    # One thread each: a thread's stack and heap take address space, and this is about the index.
    environment = {**os.environ, "GRADIAN_OPS": ops, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    peak = dict.fromkeys(("VmPeak", "VmHWM", "RssAnon"), 0)
    begun = time.perf_counter()
    with out.with_suffix(".log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", RUN, "attribute", "--config", str(config), "--out", str(out)],
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            preexec_fn=limited,
        )
        while process.poll() is None:
            for name, value in held(process.pid).items():
                peak[name] = max(peak.get(name, 0), value)
            time.sleep(_POLL_S)
    seconds = time.perf_counter() - begun
    report = out / "report.json"
    digest = hashlib.sha256(report.read_bytes()).hexdigest() if report.exists() else ""
    return Run(
        ops,
        limit,
        process.returncode,
        round(seconds, 1),
        peak["VmPeak"],
        peak["VmHWM"],
        peak["RssAnon"],
        digest,
    )


def held(process: int) -> dict[str, int]:
    """What a process holds now, in bytes; nothing once it is gone."""
    try:
        text = Path(f"/proc/{process}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return {}
    lines = (line.split() for line in text.splitlines())
    return {
        line[0].rstrip(":"): 1024 * int(line[1])
        for line in lines
        if line and line[0] in ("VmPeak:", "VmHWM:", "RssAnon:")
    }


def whole(work: Path, allowance: int, module: str | None, ops: Sequence[str]) -> dict[str, object]:
    """Size the limit and the index, run, compare."""
    places = make_model(work)
    small = work / "small"
    small.mkdir()
    config = write_config(small, places, module)
    write_rows(small / "train.jsonl", 8)
    base = attribute(config, small / "out", "auto")
    if base.exit_code:
        raise RuntimeError((small / "out.log").read_text())
    limit = base.mapped_bytes + allowance
    config = write_config(work, places, module)
    write_rows(work / "train.jsonl", 8)
    n = -(-TIMES * limit // row_bytes(config)) + 1
    free = shutil.disk_usage(work).free
    if free < 1.2 * TIMES * limit:
        raise RuntimeError(f"{free / GB:.0f} GB free, and the index takes {TIMES * limit / GB:.0f}")
    index_bytes = make_index(config, n)
    runs = []
    for choice in ops:
        runs += [
            attribute(config, work / f"free-{choice}", choice),
            attribute(config, work / f"limited-{choice}", choice, limit),
        ]
    return {
        "index_bytes": index_bytes,
        "rows": n,
        "blocks": "one" if module else "seven",
        "baseline_mapped_bytes": base.mapped_bytes,
        "limit_bytes": limit,
        "times": round(index_bytes / limit, 2),
        "runs": [asdict(run) for run in runs],
        "same": all(
            free.report == tight.report and free.report and not (free.exit_code or tight.exit_code)
            for free, tight in zip(runs[::2], runs[1::2], strict=True)
        ),
    }


def engines_under_a_limit(work: Path, headroom: int) -> dict[str, object]:
    """Score an index four times as large as what may still be mapped, in this process, by both implementations."""
    import torch

    from gradian.engines import EngineSettings
    from gradian.query.score_summary import score_summaries
    from gradian.query.scorer import QueryGradients, score_index
    from gradian.store.writer import open_writer
    from gradian.types import BlockSpec

    columns = 1 << 14
    n = TIMES * headroom // (2 * columns) + 1
    blocks = (BlockSpec("only", ((columns,),), 0),)
    with open_writer(work, {}, blocks, n, "float16", 256) as writer:
        path = fill(writer, [columns], [1] * n).path
    queries = QueryGradients(("a", "b", "c"), (torch.randn(3, columns, generator=torch.manual_seed(0)),))

    def scores(ops: str) -> str:
        os.environ["GRADIAN_OPS"] = ops
        reader = IndexReader.open(path)
        settings = EngineSettings(threads=1)
        found = score_index(reader, queries, ["datainf", "graddot"], settings)
        ends = score_summaries(reader, queries, "datainf", settings, 5)
        digest = hashlib.sha256(found["datainf"].values.tobytes() + found["graddot"].values.tobytes())
        digest.update(ends.lowest.tobytes() + ends.highest_rows.tobytes())
        return digest.hexdigest()

    choices = ("native", "reference")
    free = [scores(ops) for ops in choices]
    mapped = held(os.getpid())
    now = next(
        1024 * int(line.split()[1])
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        if line.startswith("VmSize:")
    )
    resource.setrlimit(resource.RLIMIT_AS, (now + headroom, now + headroom))
    return {
        "index_bytes": 2 * columns * n,
        "headroom_bytes": headroom,
        "mapped_without_limit_bytes": mapped.get("VmPeak", 0) - now,
        "same": free == [scores(ops) for ops in choices],
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Run in `--work` or a temporary folder, which is removed; return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, metavar="DIR", help="where the index is made (default: /tmp)")
    parser.add_argument("--allowance-gb", type=float, default=1.0, help="beyond the baseline (default: 1)")
    parser.add_argument("--blocks", choices=("one", "seven"), default="one", help="(default: one)")
    parser.add_argument("--ops", nargs="+", default=["native", "reference"], help="(default: both)")
    parser.add_argument("--quick", action="store_true", help="the engines alone, on an index of 0.3 GB")
    options = parser.parse_args(argv)
    with TemporaryDirectory(prefix="limited-", dir=options.work) as folder:
        if options.quick:
            figures = engines_under_a_limit(Path(folder), 80 << 20)
        else:
            module = "down_proj" if options.blocks == "one" else None
            figures = whole(Path(folder), int(options.allowance_gb * GB), module, options.ops)
    print(json.dumps(figures, indent=2))
    return 0 if figures["same"] else 1


if __name__ == "__main__":
    sys.exit(main())
