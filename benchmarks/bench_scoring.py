"""Scores of a stored index: DataInf as a user gets it, against torch, a loop over weights, and numpy.

    python benchmarks/bench_scoring.py --store /tmp/stores --json scoring.json

- ours: `gradian.query.scorer.score_index` with the engine `datainf`.
- torch: streams the mapped chunks and fuses as far as torch's operations allow; its tile is the best of a sweep
  in the same run (`score_baselines.torch_scores`).
- torch gram: ours and torch with the Gram matrix of each block at hand, so that the store is read once and not twice.
- loop: the elementwise loop over queries, weights and examples of published DataInf code, run on a few rows held
  in memory and scaled up: its time is proportional to rows, blocks and queries.
- numpy: as torch, with numpy alone, its tile swept too.

The index is written by Gradian's own writer, one folder a storage format, in `--store` (kept) or a temporary
folder (removed). It is read into the page cache before anything is measured; a setting in which a page still came from
the disk says so. Read bandwidth is the best of three probes that take turns with the variants: torch's sum over
memory, a copy (counting bytes read and written), and the largest integer of memory split over threads.

Before anything is measured all of them score a small index and are compared with float64: a difference ends with
exit code 1. `profile_scoring.py` runs the compiled passes for an instruction counter.
"""

from __future__ import annotations

import json
import resource
import shutil
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np
import torch
from generated_index import GeneratedGradients, write_generated
from one_block import OneBlock
from rich.console import Console
from rich.table import Table
from score_baselines import (
    LAMBDA_SCALE,
    exact_scores,
    gradients_in_memory,
    loop_scores,
    numpy_scores,
    torch_scores,
    torch_scores_with_gram,
)
from side_by_side import Run, arguments, machine, timings, verdict
from threadpoolctl import threadpool_limits

from gradian.engines import EngineSettings, GramStore
from gradian.engines.gram import gram_matrices
from gradian.progress import NullProgress
from gradian.query.scorer import QueryGradients, score_index
from gradian.store.cache import find_index, remove_index
from gradian.store.disk import estimate_bytes
from gradian.store.format import index_id
from gradian.store.reader import IndexReader
from gradian.store.writer import open_writer
from gradian.types import BlockSpec, FloatArray

CPU = torch.device("cpu")
EPS = 2.0**-24
# |score - truth| <= this * EPS * sum of magnitudes. Ours is the bound of tests/tolerances.py; the others sum a
# whole row, and all rows, in float32.
BOUNDS = {"ours": 4.0, "ours gram": 4.0, "torch": 32.0, "torch gram": 32.0, "loop": 32.0, "numpy": 32.0}
# What each baseline is set against, and how often that reads the store.
AGAINST = {"torch": "ours", "loop": "ours", "numpy": "ours", "torch gram": "ours gram"}
READS = {"ours": 2, "ours gram": 1}
# Room beside the page cache for the process and the probes.
MEMORY_RESERVE = 3 << 30

StorageName = Literal["float32", "float16"]


@dataclass(frozen=True)
class Size:
    """The store and the settings.

    Attributes:
        rows, blocks, columns: shape of the store.
        loop_rows: rows that the loop runs on.
        tiles: rows of a tile that the sweep tries.
        probe_bytes: read by each probe of the bandwidth.
    """

    rows: int = 4000
    blocks: int = 8
    columns: int = 65_536
    chunk_rows: int = 256
    loop_rows: int = 256
    tiles: tuple[int, ...] = (4, 16, 64, 256)
    queries: tuple[int, ...] = (1, 16)
    threads: tuple[int, ...] = (1, 2)
    probe_bytes: int = 512 << 20


QUICK = Size(rows=11, blocks=2, columns=301, chunk_rows=4, loop_rows=5, tiles=(2, 4), probe_bytes=1 << 16)
# Odd sizes, several chunks, and columns beyond every tile of a kernel.
SMALL = Size(rows=37, blocks=2, columns=4_099, chunk_rows=16)


@dataclass(frozen=True)
class Setting:
    """One cell of the table: storage format, number of queries, number of threads."""

    dtype: StorageName
    queries: int
    threads: int

    def __str__(self) -> str:
        return f"{self.dtype} m={self.queries} {self.threads}T"


@dataclass(frozen=True)
class Spread:
    """Seconds of the runs of one variant."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, seconds: Sequence[float], scale: float = 1.0) -> Spread:
        """Summarise runs, each `scale` times as long."""
        return cls(statistics.median(seconds) * scale, min(seconds) * scale, max(seconds) * scale)


@dataclass(frozen=True)
class ScoringRow:
    """One line of the result; `ratio` is ours over baseline, in time.

    Attributes:
        reads: times that ours reads the store.
        gb_per_s: bytes of the store that ours reads, per second.
        read_share: `gb_per_s` over `bandwidth_gb_per_s`.
        bandwidth_gb_per_s: the best probe's median.
        rows_per_s: rows that ours scores, per second, each on all queries.
        scaled: how many times the measured run of the baseline its figure is (1: all of it ran).
        tile_rows: rows of the baseline's tile, None where it has none.
    """

    case: str
    ours_s: float
    ours_min_s: float
    ours_max_s: float
    baseline_s: float
    baseline_min_s: float
    baseline_max_s: float
    ratio: float
    reads: int
    gb_per_s: float
    read_share: float
    bandwidth_gb_per_s: float
    rows_per_s: float
    scaled: float
    tile_rows: int | None


def block_specs(size: Size) -> tuple[BlockSpec, ...]:
    """Return the blocks of the store, one after another."""
    return tuple(BlockSpec(f"block{i}", ((size.columns,),), i * size.columns) for i in range(size.blocks))


def obstacle(folder: Path, size: Size, dtype: StorageName) -> str | None:
    """Return why the store cannot be made or held in memory, in a sentence, or None."""
    need = estimate_bytes(block_specs(size), size.rows, dtype, size.chunk_rows)
    free = shutil.disk_usage(folder).free
    if find_store(folder, size, dtype) is None and need > free - (1 << 30):
        return f"the {dtype} store takes {need / 1e9:.1f} GB and {folder} has {free / 1e9:.1f} GB free"
    available = available_memory()
    if available is not None and need + MEMORY_RESERVE > available:
        return (
            f"the {dtype} store takes {need / 1e9:.1f} GB of page cache and {MEMORY_RESERVE / 1e9:.1f} GB are "
            f"wanted beside it; {available / 1e9:.1f} GB of memory are available. --blocks 2 takes a quarter"
        )
    return None


def available_memory() -> int | None:
    """Return the bytes that processes and the page cache may still take, where the system says it."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable")), None)


def _inputs(size: Size, dtype: StorageName) -> dict[str, Any]:
    return {"generated": 1, "rows": size.rows, "blocks": size.blocks, "columns": size.columns, "dtype": dtype}


def find_store(folder: Path, size: Size, dtype: StorageName) -> IndexReader | None:
    """Return the store that an earlier run left, if it is whole."""
    return find_index(folder, index_id(_inputs(size, dtype)))


def open_store(folder: Path, size: Size, dtype: StorageName) -> IndexReader:
    """Return the store, written if it is not there, and read once so that the page cache holds it."""
    blocks = block_specs(size)
    with open_writer(folder, _inputs(size, dtype), blocks, size.rows, dtype, size.chunk_rows) as writer:
        if writer.finished:
            store = writer.finish()
        else:
            gradients = GeneratedGradients(blocks, dtype, size.chunk_rows)
            store = write_generated(writer, blocks, gradients, np.ones(size.rows, dtype=np.int64))
    store.verify()
    return store


def random_queries(size: Size, m: int) -> QueryGradients:
    """Return m queries, about as large as the rows."""
    rng = np.random.default_rng(m)
    blocks = [0.01 * rng.standard_normal((m, size.columns), dtype=np.float32) for _ in range(size.blocks)]
    return QueryGradients(tuple(f"query {i}" for i in range(m)), tuple(map(torch.from_numpy, blocks)))


def datainf(store: IndexReader, queries: QueryGradients, gram: GramStore | None = None) -> FloatArray:
    """Return ours: DataInf's scores, float64 [n, m]."""
    settings = EngineSettings(lambda_scale=LAMBDA_SCALE)
    scores: FloatArray = score_index(store, queries, ["datainf"], settings, gram=gram)["datainf"].values.T
    return scores


def open_gram(store: IndexReader) -> tuple[GramStore, list[torch.Tensor]]:
    """Return the store's Gram matrices, built if they are not there: as ours and as torch takes them."""
    gram = gram_matrices(store, "always", queries=1, progress=NullProgress())
    if gram is None:
        raise RuntimeError(f"{store.path}: the Gram matrices could not be built")
    return gram, [torch.from_numpy(gram.block(block)) for block in range(len(store.blocks))]


@contextmanager
def threads(count: int) -> Iterator[None]:
    """While active, torch, numpy and Gradian run on `count` threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        with threadpool_limits(count):
            yield
    finally:
        torch.set_num_threads(before)


def disagreements() -> list[str]:
    """Return which way differs from float64 on a small store, in sentences."""
    found = []
    for dtype in ("float32", "float16"):
        with TemporaryDirectory(prefix="gradian-bench-") as folder:
            store = open_store(Path(folder), SMALL, dtype)
            gram, grams = open_gram(store)
            for m in (1, 3):
                queries = random_queries(SMALL, m)
                truth, magnitude = exact_scores(store, [block.numpy() for block in queries.blocks])
                held = gradients_in_memory(store, SMALL.blocks, SMALL.rows)
                scores = {
                    "ours": datainf(store, queries),
                    "ours gram": datainf(store, queries, gram),
                    "torch": torch_scores(store, queries.blocks, 16).numpy(),
                    "torch gram": torch_scores_with_gram(store, queries.blocks, grams, 16).numpy(),
                    "loop": loop_scores(held, queries.blocks).numpy(),
                    "numpy": numpy_scores(store, queries.blocks, 16),
                }
                for name, values in scores.items():
                    error = float((np.abs(values - truth) / magnitude).max()) / EPS
                    # Written so that NaN fails.
                    if not error <= BOUNDS[name]:
                        found.append(
                            f"{name}, {dtype}, {m} queries: scores differ from float64 by {error:.1f} eps of their "
                            f"terms, more than {BOUNDS[name]:g}"
                        )
    return found


class Probes:
    """Three ways to find how fast `threads` threads can read memory, and one that reads the store as it is mapped.

    The last is no measure of the memory: it pays for mapping the pages, as every way to score must.

    Attributes:
        runs: by name.
        bytes: that each moves, by name.
    """

    MAPPED = "mapped store"

    def __init__(self, store: IndexReader, size: Size, threads: int) -> None:
        count = size.probe_bytes // 4
        # Written before it is read: untouched pages all are one page of zeros.
        source, target = torch.ones(count), torch.zeros(count)
        pool = ThreadPoolExecutor(threads)

        def largest(values: np.ndarray[Any, Any]) -> None:
            # As integers: one comparison an element, whatever the format. numpy lets go of the interpreter lock.
            words = values.reshape(-1)
            words = words[: words.nbytes // 4 * 4 // words.itemsize].view(np.int32)
            deque(pool.map(np.max, np.array_split(words, threads)), maxlen=0)

        def mapped() -> None:
            for block in range(len(store.blocks)):
                for _, rows in store.tiles(block):
                    largest(rows)

        self.runs: dict[str, Run] = {
            "torch sum": source.sum,
            "memcpy": lambda: target.copy_(source),
            "own": lambda: largest(source.numpy()),
            self.MAPPED: mapped,
        }
        stored = store.n * sum(block.size for block in store.blocks) * np.dtype(store.dtype).itemsize
        self.bytes = {"torch sum": 4 * count, "memcpy": 8 * count, "own": 4 * count, self.MAPPED: stored}

    def gigabytes_per_second(self, seconds: Mapping[str, Sequence[float]]) -> dict[str, float]:
        """Return what each moves a second, from the seconds of its runs."""
        return {name: self.bytes[name] / statistics.median(seconds[name]) / 1e9 for name in self.runs}


def best_tile(run: Callable[[int], object], size: Size) -> int:
    """Return the tile size, in rows, with the fastest of two runs."""
    seconds = {
        rows: min(timings({"": partial(run, rows)}, 2, CPU)[""])
        for rows in size.tiles
        if rows <= size.chunk_rows
    }
    return min(seconds, key=lambda rows: seconds[rows])


@dataclass(frozen=True)
class Contest:
    """The variants of one setting, ready to run.

    Attributes:
        scale: how many times its run each baseline's figure is.
        tile_rows: of the baselines that have a tile.
        warm_s: seconds that one run of everything took.
    """

    setting: Setting
    runs: Mapping[str, Run]
    probes: Probes
    scale: Mapping[str, float]
    tile_rows: Mapping[str, int]
    warm_s: float


def prepare(setting: Setting, store: IndexReader, size: Size) -> Contest:
    """Sweep the tiles, run everything once and note how long that took."""
    queries = random_queries(size, setting.queries)
    first, asked = OneBlock(store, 0), queries.blocks[:1]
    gram, grams = open_gram(store)
    rows = min(size.loop_rows, store.n)
    held = gradients_in_memory(store, 1, rows)
    one = [block[:1] for block in asked]
    with threads(setting.threads):
        tile_rows = {
            "torch": best_tile(lambda rows: torch_scores(first, asked, rows), size),
            "numpy": best_tile(lambda rows: numpy_scores(first, asked, rows), size),
            "torch gram": best_tile(lambda rows: torch_scores_with_gram(first, asked, grams, rows), size),
        }
        runs: dict[str, Run] = {
            "ours": lambda: datainf(store, queries),
            "torch": lambda: torch_scores(store, queries.blocks, tile_rows["torch"]),
            "loop": lambda: loop_scores(held, one),
            "numpy": lambda: numpy_scores(store, queries.blocks, tile_rows["numpy"]),
            "ours gram": lambda: datainf(store, queries, gram),
            "torch gram": lambda: torch_scores_with_gram(
                store, queries.blocks, grams, tile_rows["torch gram"]
            ),
        }
        probes = Probes(store, size, setting.threads)
        start = time.perf_counter()
        timings({**runs, **probes.runs}, 1, CPU)
        warm_s = time.perf_counter() - start
    scale = {"loop": store.n / rows * size.blocks * setting.queries}
    return Contest(setting, runs, probes, scale, tile_rows, warm_s)


def measured(contest: Contest, size: Size, repeats: int) -> list[ScoringRow]:
    """Return the rows of one setting, one a baseline."""
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_majflt
    with threads(contest.setting.threads):
        seconds = timings({**contest.runs, **contest.probes.runs}, repeats, CPU)
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_majflt - faults
    if faults:
        print(
            f"{contest.setting}: {faults} pages came from the disk: not a measurement of memory",
            file=sys.stderr,
        )
    bandwidth = contest.probes.gigabytes_per_second(seconds)
    shown = ", ".join(f"{name} {value:.1f}" for name, value in bandwidth.items())
    print(f"{contest.setting}: GB/s: {shown}", file=sys.stderr)
    best = max(value for name, value in bandwidth.items() if name != Probes.MAPPED)
    stored = contest.probes.bytes[Probes.MAPPED]
    result = []
    for name, opponent in AGAINST.items():
        ours, scaled = Spread.of(seconds[opponent]), contest.scale.get(name, 1.0)
        baseline = Spread.of(seconds[name], scaled)
        gb_per_s = READS[opponent] * stored / ours.median / 1e9
        result.append(
            ScoringRow(
                case=f"{name} {contest.setting}",
                ours_s=ours.median,
                ours_min_s=ours.least,
                ours_max_s=ours.most,
                baseline_s=baseline.median,
                baseline_min_s=baseline.least,
                baseline_max_s=baseline.most,
                ratio=ours.median / baseline.median,
                reads=READS[opponent],
                gb_per_s=gb_per_s,
                read_share=gb_per_s / best,
                bandwidth_gb_per_s=best,
                rows_per_s=size.rows / ours.median,
                scaled=scaled,
                tile_rows=contest.tile_rows.get(name),
            )
        )
    return result


def goals(rows: Sequence[ScoringRow]) -> list[str]:
    """Say which goals are met, for each number of threads."""
    by_case = {row.case: row for row in rows}
    lines = []
    for threads in dict.fromkeys(row.case.split()[-1] for row in rows):

        def row(baseline: str, dtype: str, m: int, threads: str = threads) -> ScoringRow:
            return by_case[f"{baseline} {dtype} m={m} {threads}"]

        one, half = row("torch", "float32", 1), row("torch", "float16", 1)
        lines += [
            verdict(f"{threads}: float32 m=1, share of read bandwidth", one.read_share, at_least=0.85),
            verdict(
                f"{threads}: m=1, float16's rows a second over float32's",
                half.rows_per_s / one.rows_per_s,
                at_least=1.7,
            ),
            verdict(
                f"{threads}: float16, 16 queries' time over one's",
                row("torch", "float16", 16).ours_s / half.ours_s,
                at_most=1.5,
            ),
        ]
        for name, dtype, wanted in (
            ("torch", "float32", 1.3),
            ("torch", "float16", 3),
            ("loop", "float32", 100),
        ):
            lines += [
                verdict(
                    f"{threads}: {dtype} m={m}, {name}'s time over ours",
                    1 / row(name, dtype, m).ratio,
                    at_least=wanted,
                )
                for m in (1, 16)
            ]
    return lines


def show(rows: Sequence[ScoringRow], setting: Sequence[str]) -> None:
    """Print the table and what the figures depend on."""
    table = Table("case", title="Scores of a stored index: DataInf")
    for heading in (
        "ours s",
        "range",
        "rows/s",
        "reads",
        "GB/s",
        "of bandwidth",
        "baseline s",
        "range",
        "tile",
        "times",
    ):
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(
            row.case,
            f"{row.ours_s:.3f}",
            f"{row.ours_min_s:.3f} to {row.ours_max_s:.3f}",
            f"{row.rows_per_s:,.0f}",
            str(row.reads),
            f"{row.gb_per_s:.1f}",
            f"{row.read_share:.0%}",
            f"{row.baseline_s:.3f}",
            f"{row.baseline_min_s:.3f} to {row.baseline_max_s:.3f}",
            "" if row.tile_rows is None else str(row.tile_rows),
            f"{1 / row.ratio:.1f}",
        )
    console = Console() if sys.stdout.isatty() else Console(width=160)
    console.print(table)
    console.print("\n".join(setting), soft_wrap=True, highlight=False)


def settings_of(size: Size) -> list[Setting]:
    """Return the cells of the table, one storage format after the other."""
    dtypes: tuple[StorageName, ...] = ("float32", "float16")
    return [Setting(dtype, m, t) for dtype in dtypes for m in size.queries for t in size.threads]


def main(argv: list[str] | None = None) -> int:
    """Check, measure and print; return the exit code."""
    parser = arguments(__doc__)
    parser.set_defaults(repeats=7)
    parser.add_argument(
        "--store", type=Path, metavar="DIR", help="keep the indexes there, or find them there"
    )
    parser.add_argument("--rows", type=int, help=f"rows of the store (default: {Size.rows})")
    parser.add_argument("--blocks", type=int, help=f"blocks of the store (default: {Size.blocks})")
    options = parser.parse_args(argv)
    chosen = {name: value for name in ("rows", "blocks") if (value := getattr(options, name)) is not None}
    size = replace(QUICK if options.quick else Size(), **chosen)
    if options.threads is not None:
        size = replace(size, threads=(options.threads,))
    with TemporaryDirectory(prefix="gradian-bench-") as temporary:
        folder = options.store or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        found = disagreements()
        if found:
            print("\n".join(found), file=sys.stderr)
            return 1
        rows: list[ScoringRow] = []
        for dtype, group in groupby(settings_of(size), key=lambda setting: setting.dtype):
            if reason := obstacle(folder, size, dtype):
                print(reason, file=sys.stderr)
                return 2
            store = open_store(folder, size, dtype)
            start = time.perf_counter()
            open_gram(store)
            gram_s = time.perf_counter() - start
            print(f"{dtype}: Gram matrices in {gram_s:.1f} s (less where they were kept)", file=sys.stderr)
            contests = []
            for setting in group:
                contests.append(prepare(setting, store, size))
                print(f"{setting}: tiles of {dict(contests[-1].tile_rows)} rows", file=sys.stderr)
            minutes = options.repeats * sum(contest.warm_s for contest in contests) / 60
            print(f"{dtype}: measuring takes about {minutes:.1f} minutes", file=sys.stderr)
            for contest in contests:
                rows += measured(contest, size, options.repeats)
            if not options.store:
                remove_index(folder, store.id)
    setting_lines = [
        machine(CPU, torch.float32),
        f"a store of {size.rows:,} rows x {size.blocks} blocks x {size.columns:,}; medians and ranges of {options.repeats}; "
        f"the loop on {min(size.loop_rows, size.rows)} rows of one block and one query, scaled",
    ]
    show(rows, setting_lines)
    if not options.quick:
        print("\n".join(goals(rows)))
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
